"""Channels that SPARK and ThinK keep, in plain float64 from keys and queries alone."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from winnow.select import Selection
from winnow.store import Spark, SparkG, SparkP
from winnow.view import LayerView


def norms_of(view: LayerView, queries: int, norm: str) -> np.ndarray:
    """n_j [H, D] of the last queries of a head's group: root mean square, or size of the mean (paper)."""
    group = view.queries.shape[0] // view.keys.shape[0]
    result = []
    for head in range(view.keys.shape[0]):
        rows = view.queries[head * group : (head + 1) * group, -queries:].double().numpy()
        rows = rows.reshape(-1, rows.shape[-1])
        result.append(np.sqrt((rows**2).mean(0)) if norm == "rms" else np.abs(rows.mean(0)))
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
    shares = {4: (0.25, 0.5, 0.75, 1.0), 5: (0.1, 0.3, 0.5, 0.7, 0.9)}[how.groups]
    levels = [math.floor(share * dim + 0.5) for share in shares]
    return next((level for level in levels if level >= needed(saliency, how.share)), levels[-1])


def think_channels(view: LayerView, selection: Selection, ratio: float, queries: int) -> list[list[int]]:
    """Channels that stay of every head: mean of q² over window and group times mean of k² over the kept slots."""
    group, dim = view.queries.shape[0] // view.keys.shape[0], view.keys.shape[-1]
    kept = []
    for head, (start, stop) in enumerate(pairwise(selection.offsets.tolist())):
        asked = view.queries[head * group : (head + 1) * group, -queries:].double().square().mean((0, 1)).numpy()
        held = view.keys[head, selection.positions[start:stop]].double().square().mean(0).numpy()
        kept.append(top(asked * held, dim - math.floor(ratio * dim)))
    return kept
