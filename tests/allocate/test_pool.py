"""The pool over layers and heads, by brute force."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.elsewhere import gpu_stand_in, there
from winnow.allocate import Claim, Global, SlotPlan, pooled
from winnow.allocate.base import Allocation


def best_of_all(scores: list[torch.Tensor], total: int) -> list[list[int]]:
    """Slots of every layer's heads: of all (layer, head, token) the best, then lower tokens, heads, layers first."""
    entries = sorted(
        (-float(one[head, token]), token, head, layer)
        for layer, one in enumerate(scores)
        for head in range(one.shape[0])
        for token in range(one.shape[1])
    )
    certain = sum(1 for entry in entries if entry[0] == -float("inf"))
    counts = [[0] * len(one) for one in scores]
    for _, _, head, layer in entries[: max(total, certain)]:
        counts[layer][head] += 1
    return counts


@st.composite
def models(draw: st.DrawFn) -> tuple[list[torch.Tensor], int, int]:
    """Scores of layers with many ties, slots that every head holds for sure, and a total."""
    length = draw(st.integers(1, 12))
    heads = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    guaranteed = draw(st.integers(0, length))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = draw(st.sampled_from([1, 2, 5, 1 << 20]))
    scores = [torch.randint(0, values, (count, length), generator=generator) / values for count in heads]
    for one in scores:
        one[:, length - guaranteed :] = torch.inf
    return scores, guaranteed, draw(st.integers(guaranteed * sum(heads), length * sum(heads)))


@settings(max_examples=150, deadline=None)
@given(models())
def test_the_pool_equals_brute_force(model: tuple[list[torch.Tensor], int, int]) -> None:
    scores, _, total = model
    assert [slots.tolist() for slots in pooled(scores, total)] == best_of_all(scores, total)


@settings(max_examples=150, deadline=None)
@given(models())
def test_layer_by_layer_it_gives_the_same(model: tuple[list[torch.Tensor], int, int]) -> None:
    scores, guaranteed, total = model
    plan = SlotPlan(total, tuple(len(one) for one in scores), scores[0].shape[1], guaranteed)
    allocator, claims, before = Global(), [], []
    for one in scores:
        claims.append(allocator.claim(one, None, plan))
        totals = allocator.totals(claims, plan)
        assert sum(totals) <= total
        assert all(now <= then for now, then in zip(totals, before, strict=False))
        claims = [claim.first(count) for claim, count in zip(claims, totals, strict=True)]
        before = totals
    expected = best_of_all(scores, total)
    assert before == [sum(layer) for layer in expected]
    slots = [allocator.head_slots(one, Allocation(plan, tuple(before)), layer) for layer, one in enumerate(scores)]
    assert [each.tolist() for each in slots] == expected


def test_what_is_always_kept_is_in_the_pool_whatever_its_size() -> None:
    scores = [torch.tensor([[0.5, torch.inf]]), torch.tensor([[torch.inf, torch.inf]])]
    assert [slots.tolist() for slots in pooled(scores, 1)] == [[1], [2]]
    assert [slots.tolist() for slots in pooled(scores, 0)] == [[1], [2]]


def test_a_claim_to_fewer_slots_lets_go_of_the_others() -> None:
    first = Claim(scores=torch.rand(100), places=torch.arange(100)).first(3)
    assert first.scores is not None
    assert first.places is not None
    assert (first.scores.untyped_storage().nbytes(), first.places.untyped_storage().nbytes()) == (12, 24)


@pytest.mark.parametrize("total", [0, 3, 99])
def test_totals_beyond_what_there_is_are_clamped(total: int) -> None:
    scores = [torch.zeros(2, 3), torch.ones(1, 3)]
    assert sum(int(slots.sum()) for slots in pooled(scores, total)) == min(total, 9)


def test_claims_of_layers_on_several_devices_are_those_on_one() -> None:
    plan, allocator = SlotPlan(16, (2, 2), 32, 0), Global()
    scores = [torch.rand(2, 32, generator=torch.Generator().manual_seed(layer)) for layer in range(2)]
    expected = allocator.totals([allocator.claim(each, None, plan) for each in scores], plan)
    with gpu_stand_in():
        spread = [allocator.claim(scores[0], None, plan), allocator.claim(there(scores[1]), None, plan)]
        assert allocator.totals(spread, plan) == expected
