"""Several right answers to one question: the one that fits best counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from winnow.metrics.base import Expected, MetricError


def best_of_several(score: Callable[[str, str], float]) -> Callable[[str, Expected], float]:
    """A score of (answer, right answer) as one of (answer, expected)."""

    @wraps(score)
    def best(answer: str, expected: Expected) -> float:
        return max(score(answer, right) for right in right_answers(expected))

    return best


def right_answers(expected: Expected) -> tuple[str, ...]:
    """The right answers. Raises MetricError without any."""
    if not expected.answers:
        raise MetricError("An example without a right answer cannot be judged.")
    return expected.answers
