"""Channels that SPARK and ThinK keep, in plain float64 from keys and queries alone."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from winnow.select import Selection
from winnow.store import Spark, SparkG, SparkP
from winnow.store.spark import Saliency
from winnow.view import LayerView

RATIOS = {4: (0.25, 0.5, 0.75, 1.0), 5: (0.1, 0.3, 0.5, 0.7, 0.9)}
"""Ratios of SPARK-g's groups."""


def norms_of(view: LayerView, queries: int, norm: str) -> np.ndarray:
    """n_j [H, D] of the last queries of a head's group: root mean square, that of group means, size of the mean."""
    group = view.queries.shape[0] // view.keys.shape[0]
    result = []
    for head in range(view.keys.shape[0]):
        rows = view.queries[head * group : (head + 1) * group, -queries:].double().numpy()
        if norm == "group-mean":
            rows = rows.mean(0)
        rows = rows.reshape(-1, rows.shape[-1])
        result.append(np.abs(rows.mean(0)) if norm == "mean" else np.sqrt((rows**2).mean(0)))
    return np.stack(result)


def query_signs(view: LayerView, queries: int) -> np.ndarray:
    """Sign of the mean query [H, D]."""
    group = view.queries.shape[0] // view.keys.shape[0]
    means = view.queries[:, -queries:].double().mean(1).reshape(-1, group, view.keys.shape[-1]).mean(1)
    return np.where(means.numpy() < 0, -1.0, 1.0)


def top(sizes: np.ndarray, count: int) -> list[int]:
    """The channels of the `count` largest sizes, ascending; the lower channel first among equals."""
    return sorted(sorted(range(len(sizes)), key=lambda j: (-sizes[j], j))[:count])


def needed(saliency: np.ndarray, share: float) -> int:
    """The fewest channels whose saliencies reach a share of their sum."""
    ordered, total = np.sort(saliency)[::-1], 0.0
    for count, each in enumerate(ordered, 1):
        total += each
        if total >= share * saliency.sum():
            return count
    return len(saliency)


def kept_by(how: Spark | SparkP | SparkG, saliency: np.ndarray) -> int:
    """T of a slot."""
    dim = len(saliency)
    if isinstance(how, Spark):
        return dim - math.floor(how.ratio * dim)
    if isinstance(how, SparkP):
        return needed(saliency, how.share)
    if how.by == "published":
        # The place, from 0 on, of the channel that reaches the share, in g parts of the range of channels.
        place = needed(saliency, how.share) - 1
        part = next(i for i in range(how.groups) if place <= int((i + 1) * dim / how.groups))
        return max(1, math.floor(RATIOS[how.groups][part] * dim + 1e-9))
    levels = [math.floor(share * dim + 0.5) for share in RATIOS[how.groups]]
    return next((level for level in levels if level >= needed(saliency, how.share)), levels[-1])


def saliency_of(how: Saliency, norms: np.ndarray, key: np.ndarray) -> np.ndarray:
    """w of a key's channels [D]."""
    return norms * key**2 if how.saliency == "squared" else norms * np.abs(key)


def segments_of(groups: int, view: LayerView, norms: np.ndarray) -> list[list[list[int]]]:
    """Channels of every head in g equal segments, the most salient first, by the sum of norms [H, D] times keys."""
    worth = norms * view.keys.double().abs().sum(1).numpy()
    dim = worth.shape[1]
    ends = [dim * i // groups for i in range(groups + 1)]
    orders = [sorted(range(dim), key=lambda j, head=head: (-head[j], j)) for head in worth]  # type: ignore[misc]
    return [[order[a:b] for a, b in pairwise(ends)] for order in orders]


def kept_of_segments(how: SparkG, saliency: np.ndarray, segments: list[list[int]]) -> list[int]:
    """Channels that every segment's pruning ratio leaves, this slot's most salient ones."""
    kept: list[int] = []
    for segment, ratio in zip(segments, RATIOS[how.groups], strict=True):
        stays = len(segment) - math.floor(ratio * len(segment) + 1e-9)
        kept += sorted(segment, key=lambda j: (-saliency[j], j))[:stays]
    return sorted(kept)


def think_channels(view: LayerView, selection: Selection, ratio: float, queries: int) -> list[list[int]]:
    """Channels that stay of every head: mean of q² over window and group times mean of k² over the kept slots."""
    group, dim = view.queries.shape[0] // view.keys.shape[0], view.keys.shape[-1]
    kept = []
    for head, (start, stop) in enumerate(pairwise(selection.offsets.tolist())):
        asked = view.queries[head * group : (head + 1) * group, -queries:].double().square().mean((0, 1)).numpy()
        held = view.keys[head, selection.positions[start:stop]].double().square().mean(0).numpy()
        kept.append(top(asked * held, dim - math.floor(ratio * dim)))
    return kept
