"""Rows of a run by method and task, and their means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from winnow.runs.rows import Row

K = TypeVar("K", bound=Hashable)


def grouped(rows: Iterable[Row], key: Callable[[Row], K]) -> dict[K, list[Row]]:
    """Rows by a key, in the order in which keys come."""
    found: dict[K, list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(found)


def mean_scores(rows: Sequence[Row]) -> dict[str, float]:
    """The mean of every score, over the rows that have it."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, score in row.scores.items():
            found[name].append(score)
    return {name: sum(scores) / len(scores) for name, scores in found.items()}


def budgetless(method: str) -> str:
    """The text of a method without its budget."""
    return method.partition(" @ ")[0]
