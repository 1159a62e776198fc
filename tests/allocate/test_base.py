"""The contract of every allocator: conserved totals, between what is guaranteed and the prompt's length."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.layers import layers
from support.views import head_slots
from winnow.allocate import Ada, Allocator, Pyramid, SlotPlan, Uniform

ALL = [Uniform(), Pyramid(), Pyramid(beta=3), Ada(), Ada(floor=0), Ada(floor=1), Ada(across=Pyramid())]
PAPER = [
    Uniform("paper"),
    Pyramid(rounding="paper"),
    Ada(rounding="paper", across=Uniform("paper")),
    Ada(rounding="paper", across=Pyramid(rounding="paper")),
]


@st.composite
def plans(draw: st.DrawFn) -> SlotPlan:
    heads = tuple(draw(st.lists(st.integers(1, 8), min_size=1, max_size=9)))
    length = draw(st.integers(1, 300))
    guaranteed = draw(st.integers(0, min(length, 16)))
    slots = draw(st.integers(sum(heads) * max(1, guaranteed), sum(heads) * length))
    return SlotPlan(slots, heads, length, guaranteed)


@settings(max_examples=100, deadline=None)
@given(plans(), st.sampled_from(ALL))
def test_layers_conserve(plan: SlotPlan, allocator: Allocator) -> None:
    totals = allocator.layer_totals(plan)
    assert sum(totals) == plan.slots
    for heads, total in zip(plan.heads, totals, strict=True):
        assert heads * plan.guaranteed <= total <= heads * plan.length


@settings(max_examples=100, deadline=None)
@given(plans(), st.sampled_from(PAPER))
def test_published_layers_stay_within_the_prompt(plan: SlotPlan, allocator: Allocator) -> None:
    for heads, total in zip(plan.heads, allocator.layer_totals(plan), strict=True):
        assert total % heads == 0
        assert heads * plan.guaranteed <= total <= heads * plan.length


@settings(max_examples=100, deadline=None)
@given(layers(), st.sampled_from(ALL))
def test_heads_conserve(case: tuple[torch.Tensor, int, int], allocator: Allocator) -> None:
    scores, guaranteed, total = case
    slots = head_slots(allocator, scores, total, guaranteed)
    assert slots.dtype == torch.int64
    assert int(slots.sum()) == total
    assert (slots >= guaranteed).all()
    assert (slots <= scores.shape[1]).all()


@settings(max_examples=100, deadline=None)
@given(layers(), st.sampled_from(PAPER))
def test_published_heads_stay_within_the_prompt(case: tuple[torch.Tensor, int, int], allocator: Allocator) -> None:
    scores, guaranteed, total = case
    slots = head_slots(allocator, scores, total, guaranteed)
    assert (slots >= guaranteed).all()
    assert (slots <= scores.shape[1]).all()
    assert abs(int(slots.sum()) - total) <= 2 * len(slots)
