"""Metrics of the benchmarks, by name."""

from winnow.metrics.base import Expected, Metric, MetricError
from winnow.metrics.registry import metric, metrics

__all__ = ["Expected", "Metric", "MetricError", "metric", "metrics"]
