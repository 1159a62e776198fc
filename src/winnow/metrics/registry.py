"""Metrics by name."""

from __future__ import annotations

from winnow.errors import closest
from winnow.metrics.base import Metric, MetricError
from winnow.metrics.contained import contains_all, contains_any

METRICS = {
    each.name: each
    for each in (
        Metric("contains_all", "share of the right answers that the answer holds", contains_all),
        Metric("contains_any", "one of the right answers is in the answer", contains_any),
    )
}


def metrics() -> list[Metric]:
    """All metrics."""
    return list(METRICS.values())


def metric(name: str) -> Metric:
    """The metric of a name. Raises MetricError, with what there is."""
    try:
        return METRICS[name]
    except KeyError:
        raise MetricError(f"There is no metric {name!r}: {closest(name, METRICS)}") from None
