"""Quantities: numbers of a report that say how good answers are, with their names and their better direction."""

from __future__ import annotations

import math
from typing import NamedTuple

from winnow.runs.intervals import SHARES, Bounds, Estimate
from winnow.runs.measures import LIKELIHOOD_MEASURES, Measure, measures
from winnow.runs.rows import Row

SCORE = "score"
FIDELITY = ("nll", "kl", "agreement")
"""Measures that are quantities of their own, also where one is a task's main one."""
_TITLES = {"nll": "perplexity", "kl": "KL divergence"}


class Quantity(NamedTuple):
    """A number that methods are compared by."""

    name: str
    title: str
    summary: str
    percent: bool
    higher_is_better: bool

    @property
    def arrow(self) -> str:
        """The better direction."""
        return "↑" if self.higher_is_better else "↓"

    @property
    def bounds(self) -> Bounds | None:
        """Bounds of the values in rows, where they have such."""
        return SHARES if self.percent else None

    def shown(self, estimate: Estimate) -> Estimate:
        """The estimate as it is shown: a likelihood as perplexity, all others as they are."""
        return Estimate(*map(_exponential, estimate)) if self.name == "nll" else estimate


SCORES = Quantity(SCORE, "score", "each task by its own main measure", percent=True, higher_is_better=True)


def quantity(name: str) -> Quantity:
    """The quantity of a name that `values_of` gives."""
    if name == SCORE:
        return SCORES
    known = {each.name: each for each in LIKELIHOOD_MEASURES} | measures()
    # A measure of somebody's own, which this version does not know.
    measure = known.get(name, Measure(name, "", percent=False, higher_is_better=True))
    title = _TITLES.get(name, name.replace("_", " "))
    summary = "exponential of the " + measure.summary.partition(",")[0] if name == "nll" else measure.summary
    return Quantity(name, title, summary, measure.percent, measure.higher_is_better)


def values_of(row: Row, main: str | None) -> dict[str, float]:
    """Values of a row by quantity. main: its task's main measure; the row's first one for None."""
    first = main if main in row.scores else row.measure
    return {SCORE if name == first and _is_score(name) else name: value for name, value in row.scores.items()}


def _is_score(name: str) -> bool:
    return name not in FIDELITY


def _exponential(value: float) -> float:
    return math.exp(min(value, 700.0))
