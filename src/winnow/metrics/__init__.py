"""Metrics of the benchmarks, by name."""

from winnow.metrics.base import Expected, Metric, MetricError
from winnow.metrics.registry import DEFAULT_METRIC, metric, metrics

__all__ = ["DEFAULT_METRIC", "Expected", "Metric", "MetricError", "metric", "metrics"]
