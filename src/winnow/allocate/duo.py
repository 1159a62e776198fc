"""DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads.

Xiao et al. 2024, arXiv 2410.10819.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.allocate.base import SlotPlan
from winnow.allocate.table import TableAllocator
from winnow.heads.resolve import highest
from winnow.parameters import check_number, meaning


@dataclass(frozen=True)
class Duo(TableAllocator):
    """Lets retrieval heads keep everything, and streaming heads what the scorer guarantees: sinks and recent tokens.

    The `retrieval` share of heads with the highest scores, rounded half to even, are retrieval heads.
    """

    retrieval: float = field(default=0.5, metadata=meaning("share of heads that keep everything"))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "retrieval", 0, 1)

    @property
    def takes_budget(self) -> bool:
        return False

    def slots(self, plan: SlotPlan) -> Tensor:
        scores = self.table().values
        retrieval = highest(scores, round(self.retrieval * scores.numel()))
        return torch.where(retrieval, plan.length, plan.guaranteed)
