"""DuoAttention: retrieval heads and streaming heads."""

from __future__ import annotations

import pytest

from support.head_scores import table
from support.slots import slots_of
from winnow.allocate import Duo, SlotPlan
from winnow.errors import MethodError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Duo(table([[1, 2]]), retrieval=1.2), "retrieval must be a number between 0 and 1"),
    ],
)
def test_wrong_parameters_are_refused(make: object, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        make()  # type: ignore[operator]


def test_duo() -> None:
    scores = table([[0.1, 0.9], [0.3, 0.2]])
    plan = SlotPlan(4 * 50, (2, 2), 50, 12)
    assert slots_of(Duo(scores), plan) == [[12, 50], [50, 12]]
    assert slots_of(Duo(scores, retrieval=0.25), plan) == [[12, 50], [12, 12]]
    assert slots_of(Duo(scores, retrieval=0.45), plan) == [[12, 50], [50, 12]]
    assert slots_of(Duo(scores, retrieval=0), plan) == [[12, 12], [12, 12]]
