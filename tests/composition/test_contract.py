"""Parts of somebody else that break their contract are named, with what they were to give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.own_parts import FirstLayers, Squared, ValueNorm
from support.views import random_view
from winnow.allocate import Allocation, Allocator, HeadAllocator, SlotPlan, Uniform
from winnow.composition.names import method
from winnow.errors import MethodError, ModelError
from winnow.score import SnapKV
from winnow.store import Cost
from winnow.view import LayerView

HEADS = (2, 2, 2, 2)
COSTS = (Cost(0, 68.0),) * 4


@dataclass(frozen=True)
class Own(ValueNorm):
    """Scores as a test wants them."""

    change: Callable[[Tensor], Any] = field(default=lambda scores: scores)

    def __call__(self, view: LayerView) -> Any:
        return self.change(super().__call__(view))


@dataclass(frozen=True)
class OwnHeads(HeadAllocator):
    """Slots as a test wants them."""

    change: Callable[[Tensor], Any] = field(default=lambda slots: slots)
    rounding: str = "exact"
    across: Allocator = field(default_factory=Uniform, kw_only=True)

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Any:
        return self.change(Uniform().head_slots(scores, allocation, layer))


@dataclass(frozen=True)
class OwnLayers(FirstLayers):
    """Totals as a test wants them."""

    change: Callable[[list[int]], list[int]] = field(default=lambda totals: totals)

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        return self.change([2 * 20] * 4)


def chosen(scorer: Any = None, allocator: Allocator | None = None) -> int:
    made = method(scorer or SnapKV(window=4), 20, allocator=allocator)
    return len(made.select(random_view(length=60), made.allocation(60, HEADS, COSTS)).positions)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda scores: scores[:, :-1], r"Own gives scores of shape \[2, 59\]; .* \[2, 60\]"),
        (lambda scores: scores[None], r"Own gives scores of shape \[1, 2, 60\]"),
        (lambda scores: scores.double(), "Own gives scores in float64; give them in float32"),
        (lambda scores: scores.bfloat16(), "Own gives scores in bfloat16"),
        (lambda scores: None, "Own gives a NoneType as scores"),
    ],
)
def test_scores_of_another_form_are_refused(change: Any, told: str) -> None:
    assert chosen(Own()) == 40
    with pytest.raises(MethodError, match=told):
        chosen(Own(change=change))
    with pytest.raises(MethodError, match=told):
        chosen(Squared(base=Own(change=change)))


def test_an_order_of_another_form_is_the_second_stages() -> None:
    @dataclass(frozen=True)
    class Short(Squared):
        """Forgets a token."""

        def refine(self, ranking: Any, slots: Tensor, view: LayerView) -> Tensor:
            return ranking.scores[:, 1:]

    with pytest.raises(MethodError, match=r"Short gives scores of shape \[2, 59\]"):
        chosen(Short(base=Own()))


def test_nan_may_be_the_scorers() -> None:
    told = "layer 0 contain NaN, which came from the keys, the queries, or the scorer Own"
    with pytest.raises(ModelError, match=told):
        chosen(Own(change=lambda scores: scores * torch.nan))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda slots: slots + 1, "OwnHeads gives the heads of layer 0 42 slots in all; it has 40"),
        (lambda slots: slots - 1, "38 slots in all"),
        (lambda slots: torch.tensor([3, 37]), r"\[3, 37\] slots; give each 4 to 60"),
        (lambda slots: torch.tensor([61, 8]), r"\[61, 8\] slots; give each 4 to 60"),
        (lambda slots: slots.float(), "slots of heads as float32 on cpu; give an int64 tensor on the CPU"),
        (lambda slots: slots.tolist(), "slots of heads as a list"),
        (lambda slots: slots[:1], r"slots \[1\] for a layer of 2 heads; give \[2\]"),
    ],
)
def test_slots_that_are_not_the_layers_are_refused(change: Any, told: str) -> None:
    assert chosen(allocator=OwnHeads()) == 40
    with pytest.raises(MethodError, match=told):
        chosen(allocator=OwnHeads(change=change))


def test_published_rounding_may_drift() -> None:
    assert chosen(allocator=OwnHeads(change=lambda slots: slots + 1, rounding="paper")) == 42


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda totals: totals[:3], "OwnLayers gives totals for 3 layers, but 4 are"),
        (lambda totals: [10 * total for total in totals], "OwnLayers gives layer 0 400 slots; give it 8 to 120"),
        (lambda totals: [total + 1 for total in totals], "all layers together 164 slots, but the budget is 160"),
    ],
)
def test_totals_that_are_not_the_budget_are_refused(change: Any, told: str) -> None:
    assert chosen(allocator=OwnLayers()) == 40
    for allocator in (OwnLayers(change=change), OwnHeads(across=OwnLayers(change=change))):
        with pytest.raises(MethodError, match=told):
            chosen(allocator=allocator)


def test_winnows_parts_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Winnow's own are tested elsewhere."""
    monkeypatch.setattr(Uniform, "head_slots", lambda *_: torch.tensor([10, 20]))
    assert chosen(replace(SnapKV(), window=4)) == 30
