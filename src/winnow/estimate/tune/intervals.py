"""Confidence intervals of an accuracy over so many questions."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

Z = 1.959964
"""Half the width of a 95 % interval, in standard deviations."""


class Interval(NamedTuple):
    """Between 0 and 1."""

    low: float
    high: float


def wilson(accuracy: float, questions: int) -> Interval:
    """95 % interval of an accuracy over so many independent questions, at least one (Wilson 1927).

    For a mean over budgets it is on the safe side: every question counts once, however often it was asked.
    """
    middle = accuracy + Z**2 / (2 * questions)
    half = Z * sqrt(accuracy * (1 - accuracy) / questions + Z**2 / (4 * questions**2))
    whole = 1 + Z**2 / questions
    return Interval(max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole))


def intervals_overlap(one: Interval, other: Interval) -> bool:
    """True if some accuracy lies in both."""
    return one.low <= other.high and other.low <= one.high
