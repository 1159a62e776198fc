"""Means of scores over rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from winnow.runs.rows import Row


def mean_scores(rows: Sequence[Row]) -> dict[str, float]:
    """The mean of every score, over the rows that have it."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, score in row.scores.items():
            found[name].append(score)
    return {name: sum(scores) / len(scores) for name, scores in found.items()}
