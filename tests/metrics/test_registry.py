"""Metrics by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from winnow.metrics import MetricError, metric, metrics
from winnow.metrics.base import is_right


def test_every_metric_is_found_by_its_name() -> None:
    assert all(metric(each.name) is each for each in metrics())


def test_the_page_has_a_row_for_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    assert sorted(re.findall(r"`(\w+)`", rows)) == sorted(each.name for each in metrics())


def test_a_name_that_is_none_is_told_what_there_is() -> None:
    with pytest.raises(MetricError, match="did you mean 'contains_all'"):
        metric("contain_all")


def test_a_score_is_right_that_lacks_nothing_but_rounding() -> None:
    assert is_right(1.0)
    assert is_right(1 - 1e-8)
    assert not is_right(0.999)
    assert not is_right(0.6)
