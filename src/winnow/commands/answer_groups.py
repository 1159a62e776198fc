"""Answers by method, with the means of what they cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

from winnow.commands.answers import AnswerResult
from winnow.composition.method import Method
from winnow.evaluate import Answer
from winnow.evaluate.slots import mean_slots


@dataclass(frozen=True)
class MethodAnswers:
    """All answers under one method at one budget."""

    method: Method
    results: list[AnswerResult]

    @property
    def answers(self) -> list[Answer]:
        """The answers alone, each with its costs."""
        return [result.answer for result in self.results]

    @property
    def known(self) -> int:
        """Questions whose right answer is known."""
        return sum(result.right is not None for result in self.results)

    @property
    def right(self) -> int:
        """Those of them that were answered so."""
        return sum(result.right is True for result in self.results)

    @property
    def score(self) -> float:
        """Mean worth of the answers to those questions."""
        return fmean(result.score for result in self.results if result.score is not None)

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return self.results[0].metric.name

    @property
    def mean_slots(self) -> float:
        """Kept prompt tokens per KV head."""
        return self.mean(lambda answer: mean_slots(answer.stats))

    @property
    def decode_speed(self) -> float | None:
        """Tokens per second over all answers, or None where no token was decoded."""
        steps, seconds = (sum(getattr(a, kind) for a in self.answers) for kind in ("decode_steps", "decode_seconds"))
        return steps / seconds if steps and seconds else None

    def mean(self, of: Callable[[Answer], float]) -> float:
        """A mean over the answers."""
        return fmean(of(answer) for answer in self.answers)


def by_method(results: Iterable[AnswerResult]) -> list[MethodAnswers]:
    """One for every method and budget, in order of appearance."""
    groups: defaultdict[Method, list[AnswerResult]] = defaultdict(list)
    for result in results:
        groups[result.answer.method].append(result)
    return [MethodAnswers(method, group) for method, group in groups.items()]
