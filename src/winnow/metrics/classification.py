"""The right class among those that an answer names; LongBench's classification_score (Bai et al. 2024)."""

from __future__ import annotations

from winnow.metrics.base import Expected, MetricError
from winnow.metrics.several import right_answers


def classification(answer: str, expected: Expected) -> float:
    """1 / number of the classes that the answer names, where the right one is among them; else 0.

    A class whose name is part of the right one's does not count as named. Raises MetricError where no right answer
    is one of the choices.
    """
    known = [right for right in right_answers(expected) if right in expected.choices]
    if not known:
        raise MetricError(f"The right answer, {expected.answers[0]!r}, is none of the {len(expected.choices)} choices.")
    return max(_share(answer, right, expected.choices) for right in known)


def _share(answer: str, right: str, choices: tuple[str, ...]) -> float:
    named = {choice for choice in choices if choice in answer}
    others = {choice for choice in named if choice not in right}
    return 1 / (1 + len(others)) if right in named else 0.0
