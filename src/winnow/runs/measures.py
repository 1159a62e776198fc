"""Measures: the names of scores in rows, with what they mean."""

from __future__ import annotations

from typing import NamedTuple

from winnow.metrics import metrics


class Measure(NamedTuple):
    """A number that rows carry."""

    name: str
    summary: str
    percent: bool
    """True: from 0 to 1, shown as 0 to 100."""
    higher_is_better: bool


LIKELIHOOD_MEASURES = (
    Measure("choice", "the likeliest choice is the right one", percent=True, higher_is_better=True),
    Measure("nll", "mean negative log-likelihood of a continuation's tokens, in nats", False, False),
    Measure("kl", "mean KL divergence of the next token's distribution from the full cache's, in nats", False, False),
    Measure("agreement", "share of tokens whose likeliest successor is the full cache's", True, True),
)
_FROM_FULL = ("kl", "agreement")


def by_definition(measure: str, method: str) -> bool:
    """True for what the full cache has of a comparison with itself: nothing is estimated there."""
    return method == "full" and measure in _FROM_FULL


def measures() -> dict[str, Measure]:
    """All of them by name."""
    judged = (Measure(each.name, each.summary, percent=True, higher_is_better=True) for each in metrics())
    return {each.name: each for each in (*judged, *LIKELIHOOD_MEASURES)}
