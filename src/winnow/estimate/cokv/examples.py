"""Validation questions; for the bundled model, generated ones apart from those of every evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from winnow.estimate.cokv.settings import QUESTION_TOKENS, QUESTIONS
from winnow.estimate.errors import ShapleyError
from winnow.estimate.journal import fingerprint
from winnow.metrics import Expected, Metric, MetricError
from winnow.tasks import QUESTION_KINDS, generate_document
from winnow.tasks.put import Put, judged_by

FIRST_DOCUMENT = 3_000_000
"""Evaluations draw their documents from seeds of one and two million."""


class ValidationExample(NamedTuple):
    """A question about a document, with its right answers."""

    document: str
    question: str
    expected: Expected
    put: Put | None = None
    """The protocol's way to put it and to judge the answer; None where the terms of an estimation say it."""

    def metric(self, usual: Metric) -> Metric:
        """The metric of its answer. Raises MetricError where it cannot be had."""
        return usual if self.put is None else judged_by(self.put.judging)


def check_examples(examples: Sequence[ValidationExample], judged: Metric) -> None:
    """Raises ShapleyError without examples, for one whose answer is empty, or that its metric cannot judge.

    judged: the metric of examples that no protocol puts.
    """
    if not examples:
        raise ShapleyError("There are no validation examples, so no coalition has a value: give at least one.")
    for number, example in enumerate(examples, start=1):
        if not all(answer.strip() for answer in example.expected.answers):
            raise ShapleyError(f"Validation example {number} has an empty answer, which nothing matches: give one.")
        try:
            example.metric(judged).check(example.expected)
        except MetricError as problem:
            raise ShapleyError(f"Validation example {number}: {problem}") from None


def hash_of(examples: Sequence[ValidationExample]) -> str:
    """A short hash, the one of earlier versions where there is one right answer to every question."""
    return fingerprint([_plain(example) for example in examples])


def _plain(example: ValidationExample) -> list[object]:
    document, question, expected, put = example
    choices = [list(expected.choices)] if expected.choices else []
    return [document, question, expected.plain(), *choices, *([] if put is None else [{"put": put}])]


def generated_examples(count: int = QUESTIONS, tokens: int = QUESTION_TOKENS) -> tuple[ValidationExample, ...]:
    """Questions of all kinds in turn, four to a document, whose prompts have at most `tokens` tokens.

    Raises ShapleyError for fewer than one, or documents too short for a question of every kind.
    """
    if count < 1:
        raise ShapleyError(f"At least one validation example is needed, not {count}.")
    found: list[ValidationExample] = []
    for seed in range(FIRST_DOCUMENT, FIRST_DOCUMENT + -(-count // len(QUESTION_KINDS))):
        document = generate_document(seed, tokens, questions_per_kind=1)
        if len(document.questions) < len(QUESTION_KINDS):
            raise ShapleyError(f"Documents of {tokens} tokens are too short for questions of all kinds: take 256.")
        found += [ValidationExample(document.text, question.text, question.expected) for question in document.questions]
    return tuple(found[:count])
