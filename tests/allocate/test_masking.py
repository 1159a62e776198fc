"""Masking: the heads that keep only what is guaranteed."""

from __future__ import annotations

import pytest

from support.head_scores import table
from support.slots import slots_of
from winnow.allocate import Masking, SlotPlan
from winnow.errors import MethodError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Masking(table([[1, 2]]), count=3), "count must be at most the number of heads, 2"),
        (lambda: Masking(table([[1, 2]]), which="first"), "which must be one of"),
    ],
)
def test_wrong_parameters_are_refused(make: object, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        make()  # type: ignore[operator]


def test_masking() -> None:
    scores = table([[1, 5], [3, 5]])
    plan = SlotPlan(4 * 50, (2, 2), 50, 8)
    assert slots_of(Masking(scores, count=0), plan) == [[50, 50], [50, 50]]
    assert slots_of(Masking(scores, count=1), plan) == [[50, 8], [50, 50]]
    assert slots_of(Masking(scores, count=3), plan) == [[50, 8], [8, 8]]
    assert slots_of(Masking(scores, count=2, which="lowest"), plan) == [[8, 50], [8, 50]]
    assert slots_of(Masking(scores, count=4), plan) == [[8, 8], [8, 8]]
