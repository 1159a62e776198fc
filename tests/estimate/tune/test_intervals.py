"""Confidence intervals of accuracies."""

from __future__ import annotations

import pytest

from winnow.estimate.tune.intervals import Interval, intervals_overlap, wilson


def test_intervals_are_wilsons():
    # Worked by hand for 5 of 10: (0.5 + z²/20 ± z·sqrt(0.025 + z²/400)) / (1 + z²/10).
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(1.0, 20).high == 1.0
    assert intervals_overlap(Interval(0.1, 0.3), Interval(0.3, 0.4))
    assert not intervals_overlap(Interval(0.1, 0.3), Interval(0.31, 0.4))
