"""From counts of right answers to a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from winnow.estimate.tune.answering import AnswerCount, Setting
from winnow.estimate.tune.intervals import Interval, intervals_overlap, wilson
from winnow.estimate.tune.knobs import Number


class Point(NamedTuple):
    """One value of the knob."""

    value: Number
    budgets: dict[str, AnswerCount]

    @property
    def right(self) -> float:
        """Right answers (or what they are worth) at all budgets together."""
        return round(sum(tally.right for tally in self.budgets.values()), 9)

    @property
    def questions(self) -> int:
        """The number of different ones."""
        return next(iter(self.budgets.values())).questions

    @property
    def accuracy(self) -> float:
        """Mean over the budgets."""
        return self.right / (self.questions * len(self.budgets))

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the mean."""
        return wilson(self.accuracy, self.questions)


class Verdict(NamedTuple):
    """The chosen value and the default on questions that did not choose."""

    chosen: Point
    default: Point

    @property
    def clear(self) -> bool:
        """True if the chosen value is told from the default; False where it is the default."""
        return not intervals_overlap(self.chosen.interval, self.default.interval)


def curve(tallies: Mapping[Setting, AnswerCount]) -> list[Point]:
    """A point for every value, in order of appearance."""
    points: dict[Number, Point] = {}
    for at, tally in tallies.items():
        points.setdefault(at.value, Point(at.value, {})).budgets[at.budget] = tally
    return list(points.values())


def best_point(points: Sequence[Point], default: Number) -> Point:
    """The highest mean over the budgets; of several, the default, or else the first."""
    most = max(point.right for point in points)
    equal = [point for point in points if point.right == most]
    return next((point for point in equal if point.value == default), equal[0])
