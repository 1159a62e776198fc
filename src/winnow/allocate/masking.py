"""Masking heads: how CoKV's Tables 1 and 16-18 compare importance scores, without any budget to tune."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from winnow.allocate.base import Allocator, SlotPlan
from winnow.allocate.planned import PlannedAllocator
from winnow.allocate.table import TableAllocator
from winnow.errors import MethodError
from winnow.heads.resolve import highest
from winnow.parameters import check_choice, check_count, meaning


@dataclass(frozen=True)
class Masking(TableAllocator):
    """Masks the `count` highest (lowest, or random) heads: they keep only the scorer's window, all others everything.

    Random heads need no scores, and are the same for every prompt.
    """

    count: int = field(default=1, metadata=meaning("number of heads that keep only their window"))
    which: Literal["top", "lowest", "random"] = field(
        default="top", metadata=meaning("choice of these heads: top or lowest by score, or random, without scores")
    )
    seed: int = field(default=0, metadata=meaning("seed of random heads"))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "count", 0)
        check_choice(self, "which", ("top", "lowest", "random"))
        check_count(self, "seed", 0, 2**63 - 1)
        if self.scores is not None and self.which == "random":
            raise MethodError("Masking: which=random uses no scores; leave them out, or use top or lowest.")
        if self.scores is not None:
            self._check_count(self.scores.values.numel())

    @property
    def takes_budget(self) -> bool:
        return False

    def for_model(self, name: str, heads: tuple[int, ...]) -> Allocator:
        if self.which != "random":
            return super().for_model(name, heads)
        if len(set(heads)) > 1:
            raise MethodError(
                f"{name} has layers of {' and '.join(map(str, sorted(set(heads))))} KV heads, but random heads need "
                "the same number in all layers: give scores, and use top or lowest."
            )
        self._check_count(sum(heads))
        return self

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        # Where heads are drawn there is no table whose shape could be another than the model's.
        return PlannedAllocator.layer_totals(self, plan) if self.which == "random" else super().layer_totals(plan)

    def slots(self, plan: SlotPlan) -> Tensor:
        masked = highest(self._order(plan), self.count)
        return torch.where(masked, plan.guaranteed, plan.length)

    def _order(self, plan: SlotPlan) -> Tensor:
        """[L, H]: the highest are masked."""
        if self.which == "random":
            drawn = torch.Generator("cpu").manual_seed(self.seed)
            return torch.rand((len(plan.heads), plan.heads[0]), generator=drawn, dtype=torch.float64, device="cpu")
        scores = self.table().values
        return scores if self.which == "top" else -scores

    def _check_count(self, heads: int) -> None:
        """Raises MethodError where more heads are to be masked than there are."""
        if self.count > heads:
            raise MethodError(f"Masking: count must be at most the number of heads, {heads}, not {self.count}.")
