"""A metric: what an answer is worth against the right ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from winnow.errors import WinnowError


class MetricError(WinnowError, ValueError):
    """A metric that does not exist, or that cannot judge an example."""


class Expected(NamedTuple):
    """Right answers of an example."""

    answers: tuple[str, ...]
    """Any of them is right; metrics that ask for all say so."""
    choices: tuple[str, ...] = ()
    """All classes or options that there are, where the task has such."""


def _never(answer: str, expected: Expected) -> bool:
    return False


@dataclass(frozen=True)
class Metric:
    """A metric by its name."""

    name: str
    summary: str
    """One line for lists."""
    score: Callable[[str, Expected], float]
    """(answer, expected) -> worth from 0 to 1. Raises MetricError for an example that it cannot judge."""
    settled: Callable[[str, Expected], bool] = _never
    """(answer so far, expected) -> True if nothing that may still be generated changes the worth."""
    libraries: tuple[str, ...] = ()
    """Modules of the extra "eval" that it needs."""
