"""Masking heads: how CoKV's Tables 1 and 16-18 compare importance scores, without any budget to tune."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from winnow.allocate.base import SlotPlan
from winnow.allocate.table import TableAllocator
from winnow.errors import MethodError
from winnow.heads.resolve import highest
from winnow.parameters import check_choice, check_count, meaning


@dataclass(frozen=True)
class Masking(TableAllocator):
    """The `count` highest (or lowest) heads keep what the scorer guarantees, its window; all others keep everything."""

    count: int = field(default=1, metadata=meaning("how many heads keep nothing but their window"))
    which: Literal["top", "lowest"] = field(
        default="top", metadata=meaning("which heads those are, by score: top or lowest")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "count", 0)
        check_choice(self, "which", ("top", "lowest"))
        if self.scores is not None and self.count > self.scores.values.numel():
            raise MethodError(
                f"Masking: count must be at most the number of heads, {self.scores.values.numel()}, not {self.count}."
            )

    @property
    def takes_budget(self) -> bool:
        return False

    def slots(self, plan: SlotPlan) -> Tensor:
        scores = self.table().values
        masked = highest(scores if self.which == "top" else -scores, self.count)
        return torch.where(masked, plan.guaranteed, plan.length)
