"""Summary of a table: extremes, mean, shares of zero and negative scores, the top heads."""

from __future__ import annotations

import pytest

from support.head_scores import table
from winnow.heads import summarize


def test_summary():
    summary = summarize(table(((0.0, 5.0), (-2.0, 3.0), (2.0, 0.0))), top=2)
    assert (summary.low, summary.high, summary.total) == (-2, 5, 8)
    assert summary.mean == pytest.approx(8 / 6)
    assert (summary.zero, summary.negative) == (pytest.approx(2 / 6), pytest.approx(1 / 6))
    assert summary.half == 1  # 5 of 10
    assert [tuple(head) for head in summary.top] == [(0, 1, 5.0), (1, 1, 3.0)]


def test_summary_without_positive_scores():
    assert summarize(table(((-1.0, -2.0),))).half is None
    assert summarize(table(((1.0, 1.0, 1.0, 1.0),))).half == 2
