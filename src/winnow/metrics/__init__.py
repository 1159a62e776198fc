"""Metrics of the benchmarks, by name."""

from winnow.metrics.base import Expected, Metric, MetricError, is_right
from winnow.metrics.judge import Judge
from winnow.metrics.registry import DEFAULT_METRIC, EXACT_MATCH, metric, metrics

__all__ = [
    "DEFAULT_METRIC",
    "EXACT_MATCH",
    "Expected",
    "Judge",
    "Metric",
    "MetricError",
    "is_right",
    "metric",
    "metrics",
]
