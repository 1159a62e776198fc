"""Exact rounding: conserved totals, limits, remainders, water filling."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.allocate import round_exactly, shared_within
from winnow.allocate.rounding import water_fill
from winnow.errors import BudgetError


@st.composite
def limits(draw: st.DrawFn) -> tuple[list[float], list[int], list[int], int]:
    count = draw(st.integers(1, 12))
    low = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    room = draw(st.lists(st.integers(0, 60), min_size=count, max_size=count))
    high = [a + b for a, b in zip(low, room, strict=True)]
    eighths = st.one_of(st.sampled_from([0, 12, 20, 80, 8000]), st.integers(-400, 16000))
    shares = [share / 8 for share in draw(st.lists(eighths, min_size=count, max_size=count))]
    return shares, low, high, draw(st.integers(sum(low), sum(high)))


@settings(max_examples=150, deadline=None)
@given(limits())
def test_rounding_conserves_and_respects_limits(case: tuple[list[float], list[int], list[int], int]) -> None:
    shares, low, high, total = case
    bounds = torch.tensor(low), torch.tensor(high)
    real = water_fill(torch.tensor(shares), total, *bounds)
    slots = round_exactly(torch.tensor(shares), total, *bounds)
    assert int(slots.sum()) == total
    assert (slots >= bounds[0]).all()
    assert (slots <= bounds[1]).all()
    assert ((slots - real).abs() < 1 + 1e-6).all()
    # one level for all: whoever is not at a limit is at share + level
    free = (real > bounds[0] + 1e-6) & (real < bounds[1] - 1e-6)
    levels = (real - torch.tensor(shares).double())[free]
    assert len(levels) == 0 or float(levels.max() - levels.min()) < 1e-6
    # larger remainders are rounded up before smaller ones, lower indices first
    whole = (real + 1e-9).floor()
    remainders = [round(remainder, 8) for remainder in (real - whole).tolist()]
    order = sorted(range(len(shares)), key=lambda i: (-remainders[i], i))
    rounded_up = (slots > whole)[order].tolist()
    assert rounded_up == sorted(rounded_up, reverse=True)


@pytest.mark.parametrize(
    ("shares", "total", "low", "high", "expected"),
    [
        ([1.5, 1.5, 1.0], 4, 0, 9, [2, 1, 1]),  # equal remainders: the lower index
        ([3.0, 2.0, 1.0], 6, 0, 9, [3, 2, 1]),
        ([20.0, 2.0, 2.0], 24, 0, 10, [10, 7, 7]),  # what the limit frees is spread
        ([0.0, 4.0, 8.0], 12, 2, 9, [2, 3, 7]),  # what a floor takes is taken from the others
        ([0.0, 0.0, 0.0], 5, 0, 9, [2, 2, 1]),
        ([100.0, 0.0], 4, 2, 9, [2, 2]),
        ([0.1] * 10, 1, 0, 1, [1] + [0] * 9),
        ([0.3, 0.1 + 0.2, 0.2, 0.2], 1, 0, 9, [1, 0, 0, 0]),  # equal but for the last bit of the second
    ],
)
def test_rounding_by_hand(shares: list[float], total: int, low: int, high: int, expected: list[int]) -> None:
    count = len(shares)
    slots = round_exactly(
        torch.tensor(shares, dtype=torch.float64),
        total,
        torch.full((count,), low),
        torch.full((count,), high),
    )
    assert slots.tolist() == expected


def test_water_fill_by_weight() -> None:
    filled = water_fill(
        torch.tensor([8.0, 4.0]), 18, torch.tensor([0, 0]), torch.tensor([99, 99]), torch.tensor([2, 1])
    )
    assert filled.tolist() == [12.0, 6.0]


@pytest.mark.parametrize("total", [3, 21])
def test_impossible_totals_are_refused(total: int) -> None:
    with pytest.raises(BudgetError, match="the limits allow 4 to 20"):
        round_exactly(torch.ones(2), total, torch.tensor([2, 2]), torch.tensor([10, 10]))


def test_heads_with_fewer_columns_than_slots_keep_all_they_have() -> None:
    slots = torch.tensor([5, 5])
    assert shared_within(slots, torch.tensor([2, 9]), 1).tolist() == [2, 8]
    assert shared_within(slots, torch.tensor([3, 4]), 1).tolist() == [3, 4]
    assert shared_within(slots, torch.tensor([1, 1]), 2).tolist() == [1, 1]
