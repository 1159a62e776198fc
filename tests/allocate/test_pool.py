"""One pool for heads of all layers: shares by definition, ties included, and the allocator that divides by them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.views import one_layer
from winnow.allocate import Ada, Global, SlotPlan
from winnow.allocate.base import Allocation
from winnow.allocate.pool import pooled
from winnow.errors import MethodError


def by_definition(scores: list[list[list[float]]], total: int) -> list[list[int]]:
    """The `total` best entries, one by one: by score, then the lowest token, head, layer."""
    entries = [
        (-score, token, head, layer)
        for layer, heads in enumerate(scores)
        for head, tokens in enumerate(heads)
        for token, score in enumerate(tokens)
    ]
    slots = [[0] * len(heads) for heads in scores]
    for _, _, head, layer in sorted(entries)[:total]:
        slots[layer][head] += 1
    return slots


@st.composite
def layers_of_scores(draw: st.DrawFn) -> tuple[list[Tensor], int]:
    heads = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    length = draw(st.integers(1, 9))
    few = st.sampled_from([0.0, 0.25, 1.0, float("inf")])
    value = draw(st.sampled_from([few, st.floats(0, 1, width=32)]))
    scores = [
        torch.tensor(draw(st.lists(st.lists(value, min_size=length, max_size=length), min_size=n, max_size=n)))
        for n in heads
    ]
    return scores, draw(st.integers(0, sum(heads) * length))


@settings(max_examples=150, deadline=None)
@given(layers_of_scores())
def test_shares_are_those_of_the_best_entries(case: tuple[list[Tensor], int]) -> None:
    scores, total = case
    slots = pooled(scores, total)
    assert [layer.tolist() for layer in slots] == by_definition([layer.tolist() for layer in scores], total)
    assert all(layer.dtype == torch.int64 for layer in slots)


def test_the_allocator_divides_what_the_plan_has() -> None:
    scores = [torch.rand(2, 30, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    for layer in scores:
        layer[:, :4] = torch.inf
    allocator = Global().for_scores(scores)
    for slots in (24, 60, 180):
        plan = SlotPlan(slots, (2, 2, 2), 30, 4)
        allocation = Allocation(plan, tuple(allocator.layer_totals(plan)))
        shares = [allocator.head_slots(scores[layer], allocation, layer) for layer in range(3)]
        assert [int(share.sum()) for share in shares] == list(allocation.totals)
        assert torch.cat(shares).sum() == slots
        assert all(int(share.min()) >= 4 for share in shares)


def test_heads_can_compete_for_a_layer_of_the_pool() -> None:
    scores = [torch.rand(2, 30) * (layer + 1) for layer in range(3)]
    allocator = Ada(across=Global())
    assert allocator.pools
    divided = allocator.for_scores(scores)
    plan = SlotPlan(60, (2, 2, 2), 30, 0)
    totals = divided.layer_totals(plan)
    assert totals == Global().for_scores(scores).layer_totals(plan)
    slots = divided.head_slots(scores[2], Allocation(plan, tuple(totals)), 2)
    assert int(slots.sum()) == totals[2]


def test_one_layer_alone_is_refused() -> None:
    with pytest.raises(MethodError, match="for_scores"):
        Global().head_slots(torch.rand(2, 8), one_layer(2, 8, 4), 0)
