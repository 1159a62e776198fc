"""Right answers somewhere in what a model says, as RULER counts them (Hsieh et al. 2024)."""

from __future__ import annotations

from winnow.metrics.base import Expected


def contains_all(answer: str, expected: Expected) -> float:
    """Share of the right answers that the answer holds, case aside (RULER's string_match_all)."""
    return _found(answer, expected) / len(expected.answers)


def contains_any(answer: str, expected: Expected) -> float:
    """1 where the answer holds one of the right answers, case aside (RULER's string_match_part)."""
    return float(_found(answer, expected) > 0)


def _found(answer: str, expected: Expected) -> int:
    said = answer.lower()
    return sum(right.lower() in said for right in expected.answers)
