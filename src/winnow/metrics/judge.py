"""A metric with the right answers to one question, for an answer that is still being said."""

from __future__ import annotations

from typing import NamedTuple

from winnow.metrics.base import Expected, Metric


class Judge(NamedTuple):
    """Judges answers to one question."""

    metric: Metric
    expected: Expected

    def score(self, text: str) -> float:
        """The worth of an answer."""
        return self.metric.score(text, self.expected)

    def settled(self, text: str) -> bool:
        """True if no further token changes the worth. The last character may still lack some of its bytes."""
        return self.metric.settled(text.rstrip("\N{REPLACEMENT CHARACTER}"), self.expected)
