"""LU-KV: Predicting Future Utility, Global Combinatorial Optimization for Task-Agnostic KV Cache Eviction.

Tang et al. 2026, arXiv 2602.08585.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from winnow.allocate.base import Allocator, SlotPlan
from winnow.allocate.planned import PlannedAllocator
from winnow.allocate.rounding import (
    LEAST_WEIGHT,
    ROUNDING,
    Rounding,
    check_rounding,
    full_tensor,
    round_exactly,
)
from winnow.errors import MethodError
from winnow.heads.curves import GRID, BudgetCurves
from winnow.heads.resolve import same_model
from winnow.parameters import meaning


@dataclass(frozen=True)
class LUKV(PlannedAllocator):
    """Gives heads slots by budget curves, which say what the next slot of each head is worth to what follows a prompt.

    For every share of the cache to evict, the curves hold the share to evict of every head, so that the loss over all
    heads is least. They have 99 such shares and are linear between them. `winnow heads curves` estimates them for one
    model and one scorer. Raises HeadScoresError for a file that cannot be read, MethodError for curves of a model of
    another shape.

    rounding="paper": the nearest of the 99 shares; every head's slots are rounded down, and the leftover is lost.
    """

    curves: BudgetCurves | None = field(
        default=None,
        metadata=meaning("budget curves of the model: a file from winnow heads curves, or a published .npy"),
    )
    rounding: Rounding = field(default="exact", metadata=ROUNDING)

    def __post_init__(self) -> None:
        check_rounding(self)
        if isinstance(self.curves, str | Path):
            object.__setattr__(self, "curves", BudgetCurves.load(self.curves))
        if self.curves is not None and not isinstance(self.curves, BudgetCurves):
            raise MethodError(f"LUKV: curves must be a file of budget curves or BudgetCurves, not {self.curves!r}.")

    def for_model(self, name: str, heads: tuple[int, ...]) -> Allocator:
        curves = self._given(name)
        _check_shape(curves, heads)
        if curves.model and name and not same_model(curves.model, name):
            warnings.warn(f"The budget curves are for {curves.model}, but the model is {name}.", stacklevel=4)
        return replace(self, curves=curves)

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        _check_shape(self._given("the model"), plan.heads)
        return super().layer_totals(plan)

    def slots(self, plan: SlotPlan) -> Tensor:
        curves = self._given("the model")
        gone = 100 * (1 - plan.slots / (sum(plan.heads) * plan.length))
        if self.rounding == "paper":
            nearest = curves.ratios[min(max(round(gone) - 1, 0), GRID - 1)]
            return ((1 - nearest) * plan.length).floor().long().clamp(plan.guaranteed, plan.length)
        shares = (kept_shares(curves, gone) * plan.length).flatten()
        low, high = full_tensor(len(shares), plan.guaranteed), full_tensor(len(shares), plan.length)
        weights = shares.clamp(min=LEAST_WEIGHT * max(float(shares.max()), 1.0))
        return round_exactly(shares, plan.slots, low, high, weights).view(curves.shape)

    def _given(self, model: str) -> BudgetCurves:
        if self.curves is None:
            raise MethodError(
                f"LUKV needs budget curves of {model or 'this model'}: give curves=FILE. `winnow heads curves` "
                "estimates them."
            )
        return self.curves


def kept_shares(curves: BudgetCurves, gone: float) -> Tensor:
    """[L, H]: the share of every head that stays where `gone` percent of all slots go, from 0 to 100."""
    nothing, everything = torch.zeros(1, *curves.shape, device="cpu"), torch.ones(1, *curves.shape, device="cpu")
    ratios = torch.cat([nothing.double(), curves.ratios, everything.double()])
    before = min(int(gone), GRID)
    return 1 - torch.lerp(ratios[before], ratios[before + 1], gone - before)


def _check_shape(curves: BudgetCurves, heads: tuple[int, ...]) -> None:
    layers, per_layer = curves.shape
    if heads != (per_layer,) * layers:
        found = f"{len(heads)} compressed layers with {' or '.join(map(str, sorted(set(heads))))} KV heads"
        raise MethodError(
            f"{curves} are for {layers} layers with {per_layer} KV heads, but the model has {found}; give curves of "
            "this model."
        )
