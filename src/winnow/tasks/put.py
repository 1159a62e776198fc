"""Put: the way in which a protocol puts an example of a benchmark to a model, and judges what it answers."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from winnow.metrics import Expected, Metric, metric
from winnow.tasks.example import Example, Judging


class Put(NamedTuple):
    """Everything about a prompt and its answer besides context, question and right answers."""

    task: str
    """Name of the example's task."""
    judging: Judging
    """That of the task; a chat template only where the protocol wants one, too."""
    answer_prefix: str = ""
    """As of `Example`."""

    def example(self, context: str, question: str) -> Example:
        """The prompt, as an example without right answers."""
        return Example("", context, question, (), answer_prefix=self.answer_prefix)


def judged_by(judging: Judging) -> Metric:
    """The metric of a task's answers; of their first lines, where these alone count.

    Raises MetricError where there is no such metric, or a library that it needs is missing.
    """
    whole = metric(judging.metric)
    if not judging.first_line:
        return whole

    def score(answer: str, expected: Expected) -> float:
        return whole.score(first_line(answer), expected)

    def settled(answer: str, expected: Expected) -> bool:
        return "\n" in answer.lstrip("\n") or whole.settled(first_line(answer), expected)

    return replace(whole, score=score, settled=settled)


def first_line(answer: str) -> str:
    """The first line of an answer that has anything in it."""
    return answer.lstrip("\n").split("\n", 1)[0]
