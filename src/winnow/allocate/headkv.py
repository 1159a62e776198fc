"""HeadKV: Not All Heads Matter, A Head-Level KV Cache Compression Method (Fu et al. 2024, arXiv 2410.19258)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.allocate.base import SlotPlan
from winnow.allocate.rounding import ROUNDING, Rounding, check_rounding
from winnow.allocate.table import TableAllocator, add_guaranteed, divide, mean_outside
from winnow.parameters import check_number, meaning


def headkv_as_published(scores: Tensor, budget: int, beta: float) -> Tensor:
    """Slots [L, H] outside the window as in the authors' code: S·pool + b - b//β, rounded half to even.

    scores [L, H] sum to 1; budget: b. Nothing is clamped: a head may get more slots than any prompt has tokens.
    """
    pool = budget // beta * scores.numel()
    return torch.round(scores * pool + (budget - budget // beta)).long()


@dataclass(frozen=True)
class HeadKV(TableAllocator):
    """Takes 1/β of the mean from every head into a pool, which heads share in proportion to their scores.

    Head h with score S_h (the scores sum to 1) gets w + b - b/β + S_h·(b/β)·L·H slots (Eq. 4), b being the mean
    outside the window of w. Slots that exceed the prompt go to the other heads, by their scores.

    rounding="paper": b//β; every head is rounded by itself, and slots that exceed the prompt are lost.
    """

    beta: float = field(default=1.2, metadata=meaning("1/beta of the mean goes into the pool that the scores divide"))
    rounding: Rounding = field(default="exact", metadata=ROUNDING)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "beta", 1)
        check_rounding(self)

    def slots(self, plan: SlotPlan) -> Tensor:
        scores = self.table().normalized().values
        if self.rounding == "paper":
            return add_guaranteed(plan, headkv_as_published(scores, mean_outside(plan), self.beta))
        mean = plan.slots / scores.numel() - plan.guaranteed
        pool = mean / self.beta * scores.numel()
        return divide(plan, mean - mean / self.beta + scores * pool, scores)
