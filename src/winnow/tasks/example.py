"""Tasks of benchmarks: contexts, questions about them, right answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Fact = str | int | float


@dataclass(frozen=True)
class Example:
    """One question about one context. Its prompt is context + question + answer_prefix, with nothing between."""

    name: str
    """Its name among the examples of its task, the same for the same seed and data."""
    context: str
    """All that is read before the question can be known; this part is compressed where the question is not seen."""
    question: str
    """The rest of what the user says, with the blanks or lines that divide it from the context."""
    answers: tuple[str, ...]
    """Right answers; for a task of continuations (metric "fidelity") the text that goes on."""
    choices: tuple[str, ...] = ()
    """All classes or options that there are, where the task has such."""
    answer_prefix: str = ""
    """The beginning of the answer, which the model is given: behind the chat template, if one is used."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Facts that results are grouped by: length, depth, …"""


class Judging(NamedTuple):
    """Rules by which the answers of a task are got and judged."""

    metric: str
    """A name of `winnow.metrics.metrics()`; or one of LIKELIHOODS, which the model's probabilities decide."""
    max_new_tokens: int
    chat_template: bool = True
    """False for tasks that are put to a model as plain text whatever the protocol (LongBench's few-shot tasks)."""
    first_line: bool = False
    """True where only the first line of the answer is judged (LongBench's few-shot tasks)."""


LIKELIHOODS = ("choice", "fidelity")
"""Judged by probabilities instead of an answer: the likeliest of the choices; a given continuation."""


@dataclass(frozen=True)
class Task:
    """Examples of one kind."""

    benchmark: str
    name: str
    judging: Judging
    examples: tuple[Example, ...]
