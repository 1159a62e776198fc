"""CoKV (Eq. 5) by hand, as min-max normalization, and as published."""

from __future__ import annotations

import pytest
import torch

from support.head_scores import table
from support.slots import slots_of
from winnow import HeadScores
from winnow.allocate import CoKV, SlotPlan
from winnow.allocate.cokv import cokv_as_published, excess
from winnow.errors import MethodError


def test_cokv_by_hand() -> None:
    # the 2nd smallest is -1: e = 0, 0, 2, 6; outside the window there are 80 - 16 = 64
    scores = table([[-3, -1], [1, 5]])
    assert slots_of(CoKV(scores, alpha=2), SlotPlan(80, (2, 2), 1000, 4)) == [[4, 4], [20, 52]]
    # at most 40: the others take what is over, by e
    assert slots_of(CoKV(scores, alpha=2), SlotPlan(80, (2, 2), 40, 4)) == [[4, 4], [32, 40]]
    assert slots_of(CoKV(scores, alpha=3), SlotPlan(20, (2, 2), 40, 4)) == [[4, 4], [4, 8]]


def test_cokv_is_min_max_normalisation() -> None:
    """Eq. 5 divides by max - t as well, which cancels."""
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for alpha in (1, 4, 10):
        ordered = values.flatten().sort().values
        normalized = ((values - ordered[alpha - 1]) / (ordered[-1] - ordered[alpha - 1])).clamp(min=0)
        torch.testing.assert_close(excess(HeadScores(values, "cokv"), alpha), normalized / normalized.sum())


def test_cokv_as_published_floors_and_drops() -> None:
    scores = HeadScores(torch.rand(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64), "cokv")
    shares = excess(scores, 3)
    assert torch.equal(cokv_as_published(shares, 25), torch.floor(25 * 16 * shares).long())
    paper = CoKV(scores, alpha=3, rounding="paper")
    plan = SlotPlan(16 * 33, (4,) * 4, 1000, 8)
    assert 16 * 33 - 16 < sum(paper.layer_totals(plan)) < 16 * 33
    assert sum(CoKV(scores, alpha=3).layer_totals(plan)) == 16 * 33


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CoKV(table([[1, 2]]), alpha=2), "alpha must be below the number of heads, 2"),
        (lambda: CoKV(table([[1, 2]]), alpha=0), "alpha must be a whole number of at least 1"),
        (lambda: CoKV(table([[1, 1], [1, 1]])), "no head of .* is above its smallest 1"),
    ],
)
def test_wrong_parameters_are_refused(make: object, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        make()  # type: ignore[operator]
