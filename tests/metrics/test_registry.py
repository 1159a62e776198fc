"""Metrics by name."""

from __future__ import annotations

import pytest

from winnow.metrics import MetricError, metric, metrics


def test_every_metric_is_found_by_its_name() -> None:
    assert all(metric(each.name) is each for each in metrics())


def test_a_name_that_is_none_is_told_what_there_is() -> None:
    with pytest.raises(MetricError, match="did you mean 'contains_all'"):
        metric("contain_all")
