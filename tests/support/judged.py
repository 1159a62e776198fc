"""The worth of an answer by the name of a metric."""

from __future__ import annotations

from winnow.metrics import Expected, metric


def worth(name: str, answer: str, *answers: str, choices: tuple[str, ...] = ()) -> float:
    """Worth of an answer against right ones."""
    return metric(name).score(answer, Expected(answers, choices))
