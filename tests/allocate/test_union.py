"""One set for heads that share latents: need by sum, by maximum and by rank, against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from winnow import MethodError
from winnow.allocate import RABA, Ada, Allocation, HeadUnion, Pyramid, SlotPlan, Uniform, of_sharing_heads, union_of

INF = math.inf


@st.composite
def layers(draw):
    heads, length = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    score = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 0.25, 1.0, 3.0, INF])
    order = [[draw(score) for _ in range(length)] for _ in range(heads)]
    slots = [draw(st.integers(0, 5)) for _ in range(heads)]
    return order, slots


def expected_need(by: str, order: list[list[float]], slots: list[int]) -> list[float]:
    heads, length = len(order), len(order[0])
    sure = [all(order[h][t] == INF for h in range(heads)) for t in range(length)]
    weights = slots if any(slots) else [1] * heads
    terms = [[0.0] * length for _ in range(heads)]
    for h in range(heads):
        others = [t for t in range(length) if not sure[t]]
        if by == "rank":
            for rank, t in enumerate(sorted(others, key=lambda t: (-order[h][t], t))):
                terms[h][t] = weights[h] / (1 + rank)
            continue
        finite = [x for x in order[h] if x < INF]
        low = min(finite, default=0.0)
        best = max(finite, default=0.0) - low or 1.0
        mass = {t: best if order[h][t] == INF else order[h][t] - low for t in others}
        total = sum(mass.values())
        for t in others:
            terms[h][t] = weights[h] * mass[t] / total if total else 0.0
    together = sum if by == "sum" else max
    return [INF if sure[t] else together(terms[h][t] for h in range(heads)) for t in range(length)]


@settings(max_examples=150, deadline=None)
@given(layers(), st.sampled_from(["sum", "max", "rank"]))
def test_need_is_as_defined(layer, by):
    order, slots = layer
    need = HeadUnion(by).need(torch.tensor(order), torch.tensor(slots))
    assert need.tolist() == pytest.approx(expected_need(by, order, slots), rel=1e-12)


def test_of_many_equal_scores_the_first_tokens_rank_first():
    need = HeadUnion("rank").need(torch.zeros(2, 200), torch.tensor([3, 1]))
    assert need.tolist() == [3 / (1 + token) for token in range(200)]


def test_rank_makes_a_union_that_grows_with_slots():
    """The head of twice the slots has two of its best tokens in the set where the other has one."""
    order = torch.tensor([[9.0, 8, 7, 6, 0, 0, 0, 0], [0.0, 0, 0, 0, 9, 8, 7, 6]])
    need = HeadUnion("rank").need(order, torch.tensor([4, 2]))
    assert set(need.topk(3).indices.tolist()) == {0, 1, 4}


def test_the_sum_keeps_what_all_need_a_little_and_the_maximum_what_one_needs_much():
    order = torch.tensor([[6.0, 0.0, 0.0, 4.0], [0.0, 6.0, 0.0, 4.0], [0.0, 0.0, 6.0, 4.0]])
    even = torch.ones(3, dtype=torch.int64)
    assert HeadUnion("sum").need(order, even).argsort(descending=True, stable=True).tolist() == [3, 0, 1, 2]
    assert HeadUnion("max").need(order, even).argsort(descending=True, stable=True).tolist() == [0, 1, 2, 3]


def test_allocations_of_sharing_heads_count_every_head():
    plan = SlotPlan(60, (1, 1, 1), 50, 4)
    many = of_sharing_heads(Allocation(plan, (30, 20, 10)), 4)
    assert many.plan == SlotPlan(240, (4, 4, 4), 50, 4)
    assert many.totals == (120, 80, 40)


def test_the_union_follows_other_allocators_in_a_name():
    method = winnow.method("snapkv+raba+pyramid+union(by=max)", budget=64)
    assert method.allocator == HeadUnion("max", across=RABA(across=Pyramid()))
    assert winnow.method(str(method)) == method
    assert union_of(method.allocator) is method.allocator
    assert union_of(Ada()) == HeadUnion("sum", across=Ada())
    objects = winnow.method(method.scorer, 64, allocator=method.allocator)
    assert winnow.method(str(objects)).allocator == method.allocator
    assert HeadUnion().across == Uniform()


def test_an_unknown_need_is_refused():
    with pytest.raises(MethodError, match="by"):
        HeadUnion("mean")
