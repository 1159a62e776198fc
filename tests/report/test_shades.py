"""Shades of a table's scores: the range, its power and its sign."""

from __future__ import annotations

import pytest

from support.head_scores import table
from winnow.report.shades import scale_of


@pytest.mark.parametrize(
    ("values", "low", "high", "power", "signed"),
    [
        (((0.0, 0.5, 1.0),), 0, 1, 1.0, False),
        (((0.1, 0.1, 0.1, 0.1, 0.1, 5.0),), 0, 5, 0.5, False),
        (((-3.0, 1.0),), -3, 3, 1.0, True),
        (((-0.01, 0.6, 1.0),), 0, 1, 1.0, False),
        (((-4.0, -2.0),), -4, -2, 1.0, False),
        (((-4.0, -4.0),), -4, -4, 1.0, False),
    ],
)
def test_scale(values, low, high, power, signed):
    scores = table(values)
    scale = scale_of([scores])
    assert tuple(scale) == (low, high, power, signed)
    levels = scale.levels(scores.values)
    assert 0 <= levels.min() <= levels.max() <= 1
    assert levels.max() == (1 if not signed else pytest.approx(4 / 6))
