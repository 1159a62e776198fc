"""CoKV: Optimizing KV Cache Allocation via Cooperative Game (Sun et al. 2025, arXiv 2502.17501)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.allocate.base import SlotPlan
from winnow.allocate.rounding import ROUNDING, Rounding, check_rounding
from winnow.allocate.table import TableAllocator, add_guaranteed, divide, mean_outside
from winnow.errors import MethodError
from winnow.heads import HeadScores
from winnow.parameters import check_count, meaning


def excess(scores: HeadScores, alpha: int) -> Tensor:
    """[L, H]: how far each head is above the alpha-th smallest score, at least 0, over their sum.

    Eq. 5's normalized scores: the division by the range cancels. Raises MethodError where no head is above.
    """
    threshold = scores.values.flatten().kthvalue(alpha).values
    above = (scores.values - threshold).clamp(min=0)
    if not bool(above.any()):
        raise MethodError(f"CoKV: no head of {scores} is above its smallest {alpha} scores; use a smaller alpha.")
    return above / above.sum()


def cokv_as_published(shares: Tensor, budget: int) -> Tensor:
    """Slots [L, H] outside the window as in the authors' code: floor(b·n·share), the leftover dropped."""
    return torch.floor(shares * budget * shares.numel()).long()


@dataclass(frozen=True)
class CoKV(TableAllocator):
    """Divides the slots outside the window in proportion to how far a head's score is above the alpha-th smallest.

    Head h gets w + b·n·e_h/Σe slots with e_h = max(score_h - t, 0) (Eq. 5), t being the alpha-th smallest of n scores:
    the alpha lowest heads keep only their window. Slots that exceed the prompt go to the other heads, by e.

    rounding="paper": shares are rounded down; the leftover and slots that exceed the prompt are lost.
    """

    alpha: int = field(default=1, metadata=meaning("number of lowest heads, which keep only their window"))
    rounding: Rounding = field(default="exact", metadata=ROUNDING)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "alpha", 1)
        check_rounding(self)
        if self.scores is not None:
            count = self.scores.values.numel()
            if self.alpha >= count:
                raise MethodError(f"CoKV: alpha must be below the number of heads, {count}, not {self.alpha}.")
            excess(self.scores, self.alpha)

    def slots(self, plan: SlotPlan) -> Tensor:
        shares = excess(self.table(), self.alpha)
        if self.rounding == "paper":
            return add_guaranteed(plan, cokv_as_published(shares, mean_outside(plan)))
        outside = plan.slots - plan.guaranteed * shares.numel()
        return divide(plan, shares * outside, shares)
