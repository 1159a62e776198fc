"""Means with intervals, by the bootstrap, and a test of paired differences.

Percentile bootstrap (Efron and Tibshirani 1993, chapter 13): examples are drawn again, with replacement, as often as
there are; examples of one cluster (questions about one context) are drawn together. A mean over tasks draws within
each task. Where the means of a task's clusters are all alike, the bootstrap would give an interval of no width; the
rule of three (Hanley and Lippman-Hand 1983) says how many others may have been missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

LEVEL = 0.95
RESAMPLES = 10_000
_BATCH = 1 << 22
"""Numbers drawn at a time."""
_EXACT = 14
"""Clusters up to which all signs are tried instead of drawn ones."""
_ROUNDING = 1e-9
"""Sums of the same differences in another order differ by less, as a share of the sum of their sizes."""


class Estimate(NamedTuple):
    """A mean and its interval."""

    mean: float
    low: float
    high: float

    def without_width(self) -> Estimate:
        """The mean alone, where it is no estimate."""
        return Estimate(self.mean, self.mean, self.mean)


class Bounds(NamedTuple):
    """The least and the greatest value that there can be."""

    least: float
    most: float


SHARES = Bounds(0.0, 1.0)
DIFFERENCES = Bounds(-1.0, 1.0)
"""Differences of two shares."""


@dataclass(frozen=True)
class Bootstrap:
    """A way to draw again."""

    resamples: int = RESAMPLES
    level: float = LEVEL
    seed: int = 0


class Clusters(NamedTuple):
    """A task's values, added up within its clusters."""

    sums: Array
    sizes: Array
    values: Array

    @classmethod
    def of(cls, values: Sequence[float] | Array, names: Sequence[str] | None = None) -> Clusters:
        """values: one per example, at least one; names: the cluster of each, its own for None."""
        given = np.asarray(values, dtype=np.float64)
        if not len(given):
            raise ValueError("an interval needs at least one value")
        if names is None:
            return cls(given, np.ones_like(given), given)
        _, index = np.unique(np.asarray(names), return_inverse=True)
        # Sums of the same values are the same to the bit, whatever their order.
        order = np.lexsort((given, index))
        given, index = given[order], index[order]
        return cls(np.bincount(index, given).astype(np.float64), np.bincount(index).astype(np.float64), given)

    @property
    def mean(self) -> float:
        """The mean of all values."""
        return float(self.values.mean())


def mean_interval(
    tasks: Sequence[Clusters], bounds: Bounds | None = None, bootstrap: Bootstrap | None = None
) -> Estimate:
    """The mean over tasks of their means, with its interval; for one task its mean.

    bounds: of the values, where they have such; without them clusters that are all alike get an interval of no width.
    For a paired difference give the examples' differences.
    """
    bootstrap = bootstrap or Bootstrap()
    rng = np.random.default_rng(bootstrap.seed)
    means = sum(_resampled_means(task, bootstrap.resamples, rng) for task in tasks) / len(tasks)
    tail = (1 - bootstrap.level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    below, above = _missed(tasks, bounds, bootstrap.level)
    return Estimate(float(np.mean([task.mean for task in tasks])), float(low) - below, float(high) + above)


def sign_flip_p(tasks: Sequence[Clusters], bootstrap: Bootstrap | None = None) -> float:
    """The p-value of a mean of paired differences: how often random signs take it as far from 0, or farther.

    Fisher's randomization test, two-sided, with one sign for all of a cluster; exact for few clusters. Unlike an
    interval by the bootstrap it is not too sure of few examples.
    """
    bootstrap = bootstrap or Bootstrap()
    shares = np.concatenate([task.sums / task.sizes.sum() for task in tasks])
    sizes = np.abs(shares[shares != 0])
    reached = abs(float(shares.sum())) - _ROUNDING * float(sizes.sum())
    if len(sizes) <= _EXACT:
        signs = 1 - 2 * (np.arange(2 ** len(sizes))[:, None] >> np.arange(len(sizes)) & 1)
        return float(np.mean(np.abs(signs @ sizes) >= reached))
    distinct, counts = np.unique(sizes, return_counts=True)
    rng = np.random.default_rng(bootstrap.seed)
    hits = 0
    for drawn in _batches(bootstrap.resamples, len(distinct)):
        positive = rng.binomial(counts, 0.5, size=(drawn, len(distinct)))
        hits += int(np.sum(np.abs((2 * positive - counts) @ distinct) >= reached))
    return (hits + 1) / (bootstrap.resamples + 1)


def _resampled_means(task: Clusters, resamples: int, rng: np.random.Generator) -> Array:
    """[resamples] Clusters that are alike are drawn by their number, which for right and wrong answers is quick."""
    kinds, counts = np.unique(np.stack([task.sums, task.sizes], axis=1), axis=0, return_counts=True)
    clusters = int(counts.sum())
    found = []
    for drawn in _batches(resamples, len(kinds)):
        times = rng.multinomial(clusters, counts / clusters, size=drawn)
        sums, sizes = (times @ kinds).T
        found.append(sums / sizes)
    return np.concatenate(found)


def _batches(resamples: int, width: int) -> list[int]:
    each = max(1, min(resamples, _BATCH // width))
    return [min(each, resamples - start) for start in range(0, resamples, each)]


def _missed(tasks: Sequence[Clusters], bounds: Bounds | None, level: float) -> tuple[float, float]:
    """Room below and above a mean over tasks for clusters that tasks whose clusters are all alike may have missed."""
    if bounds is None:
        return 0.0, 0.0
    # Means of the same values in clusters of other sizes differ by rounding.
    alike = [task for task in tasks if np.ptp(task.sums / task.sizes) <= _ROUNDING]
    below = [(task.mean - bounds.least, len(task.sums)) for task in alike]
    above = [(bounds.most - task.mean, len(task.sums)) for task in alike]
    return _room(below, level) / len(tasks), _room(above, level) / len(tasks)


def _room(tasks: Sequence[tuple[float, int]], level: float) -> float:
    """Sum over tasks (farthest value, clusters) of what was missed, at most.

    With n clusters alike, a share q of others would have shown with probability 1 - (1 - q)^n; q is where that is
    `level`.
    """
    far = [(distance, clusters) for distance, clusters in tasks if distance > 0]
    if not far:
        return 0.0
    clusters = len(far) * min(clusters for _, clusters in far)
    return float(sum(distance for distance, _ in far) * (1 - (1 - level) ** (1 / clusters)))
