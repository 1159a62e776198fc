"""Selection against sorting, ties included."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.errors import ModelError
from winnow.select import everything, ranks, select


def by_sorting(scores: torch.Tensor, slots: list[int]) -> list[list[int]]:
    """Best first, lower index first among equals, then back in order."""
    rows = scores.tolist()
    ranked = [sorted(range(len(row)), key=lambda t, row=row: (-row[t], t)) for row in rows]
    return [sorted(order[:count]) for order, count in zip(ranked, slots, strict=True)]


def per_head(positions: torch.Tensor, offsets: torch.Tensor) -> list[list[int]]:
    bounds = offsets.tolist()
    return [positions[a:b].tolist() for a, b in pairwise(bounds)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, list[int]]:
    heads, length = draw(st.integers(1, 5)), draw(st.integers(1, 24))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    few_values = torch.tensor([-1.0, 0.0, 0.25, 0.25, 1.0, torch.inf, -torch.inf])
    scores = few_values[torch.randint(0, draw(st.integers(1, 7)), (heads, length), generator=generator)]
    slots = draw(st.lists(st.integers(0, length), min_size=heads, max_size=heads))
    return scores, slots


@settings(max_examples=200, deadline=None)
@given(cases())
def test_equals_sorting(case: tuple[torch.Tensor, list[int]]) -> None:
    scores, slots = case
    selection = select(scores, torch.tensor(slots))
    assert selection.positions.dtype == selection.offsets.dtype == torch.int64
    assert per_head(*selection) == by_sorting(scores, slots)


@given(cases(), st.data())
def test_the_first_by_rank_are_the_best_of_those_that_are_left(case: tuple[torch.Tensor, list[int]], data) -> None:
    scores, slots = case
    selection = select(scores, torch.tensor(slots))
    fewer = [data.draw(st.integers(0, count)) for count in slots]
    head = selection.heads(scores.device)
    keep = ranks(scores, selection) < torch.tensor(fewer)[head]
    left = [selection.positions[keep & (head == number)].tolist() for number in range(len(slots))]
    assert left == by_sorting(scores, fewer)


def test_long_prompt_without_ties() -> None:
    scores = torch.rand(8, 8192, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    slots = [1, 100, 1000, 2000, 4000, 6000, 8191, 8192]
    assert per_head(*select(scores, torch.tensor(slots))) == by_sorting(scores, slots)


def test_no_slots_at_all() -> None:
    selection = select(torch.rand(2, 5), torch.tensor([0, 0]))
    assert selection.positions.numel() == 0
    assert selection.offsets.tolist() == [0, 0, 0]


def test_everything() -> None:
    selection = everything(torch.zeros(2, 3, 1))
    assert per_head(*selection) == [[0, 1, 2], [0, 1, 2]]


def test_nan_names_the_layer() -> None:
    scores = torch.rand(2, 5)
    scores[1, 3] = torch.nan
    with pytest.raises(ModelError, match="layer 7"):
        select(scores, torch.tensor([2, 2]), layer=7)
