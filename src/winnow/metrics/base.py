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

    def plain(self) -> str | list[str]:
        """The answers as files have them: the only one itself, or a list."""
        return self.answers[0] if len(self.answers) == 1 else list(self.answers)


def _never(answer: str, expected: Expected) -> bool:
    return False


def is_right(score: float) -> bool:
    """True for a score that lacks nothing; ROUGE's rounding aside."""
    return score > 1 - 1e-6


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

    def check(self, expected: Expected) -> None:
        """Raises MetricError for an example that it cannot judge, before there is an answer."""
        self.score("", expected)
