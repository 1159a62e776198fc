"""Groups: examples of a task about one context, which is prefilled once for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from winnow.tasks.example import Example, Judging, Task

Texts = tuple[str, str, tuple[str, ...], tuple[str, ...], str]


@dataclass(frozen=True)
class Group:
    """Examples of one task about one context."""

    benchmark: str
    task: str
    judging: Judging
    examples: tuple[Example, ...]

    @property
    def work(self) -> int:
        """Characters to be read: what groups differ by in the time that they take."""
        return len(self.examples[0].context) + sum(len(example.question) for example in self.examples)


def texts_of(example: Example) -> Texts:
    """All of an example that its result depends on; its name is not."""
    return example.context, example.question, example.answers, example.choices, example.answer_prefix


def grouped(tasks: Iterable[Task], most: int | None) -> list[Group]:
    """Groups of at most `most` examples that are `different`, or of any number; the tasks take turns, so that the first
    few groups tell of all of them.
    """
    return _in_turn([_of_task(task, most) for task in tasks])


def different(examples: Iterable[Example]) -> tuple[Example, ...]:
    """The first of all examples of a task that have the same texts: they have one result between them."""
    found: dict[Texts, Example] = {}
    for example in examples:
        found.setdefault(texts_of(example), example)
    return tuple(found.values())


def _of_task(task: Task, most: int | None) -> list[Group]:
    by_context: dict[str, list[Example]] = {}
    for example in different(task.examples):
        by_context.setdefault(example.context, []).append(example)
    return [
        Group(task.benchmark, task.name, task.judging, tuple(examples[first : first + (most or len(examples))]))
        for examples in by_context.values()
        for first in range(0, len(examples), most or len(examples))
    ]


def _in_turn(lists: Sequence[list[Group]]) -> list[Group]:
    return [group for turn in zip_longest(*lists) for group in turn if group is not None]
