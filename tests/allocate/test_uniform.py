"""Uniform slots: leftovers and layers of different width."""

from __future__ import annotations

import pytest
import torch

from support.views import head_slots
from winnow.allocate import SlotPlan, Uniform
from winnow.errors import BudgetError, MethodError


def test_uniform_leftovers_go_to_lower_layers_and_heads() -> None:
    assert Uniform().layer_totals(SlotPlan(11, (2, 2, 2), 9, 0)) == [4, 4, 3]
    assert head_slots(Uniform(), torch.zeros(3, 9), 11).tolist() == [4, 4, 3]
    assert Uniform("paper").layer_totals(SlotPlan(11, (2, 2, 2), 9, 0)) == [2, 2, 2]
    assert head_slots(Uniform("paper"), torch.zeros(3, 9), 11).tolist() == [3, 3, 3]


def test_slots_that_heads_cannot_hold_are_refused() -> None:
    with pytest.raises(BudgetError):
        head_slots(Uniform(), torch.zeros(2, 9), 19)


def test_layers_of_different_width_get_the_same_mean_per_head() -> None:
    assert Uniform().layer_totals(SlotPlan(140, (8, 2, 4), 50, 8)) == [80, 20, 40]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Uniform("nearest"),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]
