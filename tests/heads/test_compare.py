"""Comparison of two tables against its definitions: rank correlation, overlap of the top heads."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.head_scores import table
from winnow.heads import HeadScores, HeadScoresError, rank_correlation, top_heads, top_overlap


def spearman(a: list[float], b: list[float]) -> float:
    """Pearson's correlation of the ranks, ties by their mean place."""

    def ranks(values: list[float]) -> list[float]:
        return [sum(other < x for other in values) + (sum(other == x for other in values) - 1) / 2 for x in values]

    first, second = ranks(a), ranks(b)
    middle = (len(a) - 1) / 2
    shared = sum((x - middle) * (y - middle) for x, y in zip(first, second, strict=True))
    spread = math.sqrt(sum((x - middle) ** 2 for x in first) * sum((y - middle) ** 2 for y in second))
    return shared / spread if spread else math.nan


few_levels = st.lists(st.integers(-2, 3), min_size=12, max_size=12).filter(any)


@settings(max_examples=100, deadline=None)
@given(few_levels, few_levels)
def test_rank_correlation_against_its_definition(a, b):
    one, other = (HeadScores(torch.tensor(values).view(3, 4), "x") for values in (a, b))
    assert rank_correlation(one, other) == pytest.approx(spearman(a, b), nan_ok=True)
    assert rank_correlation(one, other) == pytest.approx(rank_correlation(other, one), nan_ok=True)


@settings(max_examples=100, deadline=None)
@given(few_levels, few_levels, st.integers(1, 12))
def test_top_overlap_against_sorting(a, b, k):
    def top(values: list[int]) -> set[int]:
        return set(sorted(range(12), key=lambda index: (-values[index], index))[:k])

    one, other = (HeadScores(torch.tensor(values).view(3, 4), "x") for values in (a, b))
    assert top_overlap(one, other, k=k) == len(top(a) & top(b)) / k
    assert top_overlap(one, one, k=k) == 1


def test_ranks_are_exact_under_a_default_dtype_of_16_bits():
    """Programs set it that load models in 16 bits; ranks beyond 256 are no numbers of bfloat16."""
    one, other = torch.randperm(2048, generator=torch.Generator().manual_seed(0)).double().view(2, 32, 32)
    expected = rank_correlation(HeadScores(one, "x"), HeadScores(other, "x"))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = rank_correlation(HeadScores(one, "x"), HeadScores(other, "x"))
    finally:
        torch.set_default_dtype(before)
    assert found == expected


def test_overlap_by_share():
    one = table(((4.0, 3.0), (2.0, 1.0)))
    other = table(((4.0, 1.0), (3.0, 2.0)))
    assert top_overlap(one, other) == 0.5
    assert top_overlap(one, other, share=0.01) == 1
    assert top_overlap(one, other, share=0.99) == 2 / 3  # 3 of 4 heads, rounded down
    assert top_heads(other, 2) == [(0, 0), (1, 0)]
    opposite = table(((1.0, 2.0), (3.0, 4.0)))
    assert top_overlap(one, opposite) == 0
    assert rank_correlation(one, opposite) == pytest.approx(-1)


@pytest.mark.parametrize("options", [{"share": 0}, {"share": 1.1}, {"share": math.nan}, {"k": 0}, {"k": 5}])
def test_overlap_of_none_or_too_many(options):
    with pytest.raises(HeadScoresError, match="must be"):
        top_overlap(table(), table(), **options)


@pytest.mark.parametrize("compare", [top_overlap, rank_correlation])
def test_only_the_same_heads_compare(compare):
    with pytest.raises(HeadScoresError, match="only tables of the same heads compare"):
        compare(table(), table(((1.0, 2.0),)))
    with pytest.raises(HeadScoresError, match="--kv-heads"):
        compare(table(), table(heads="query"))
