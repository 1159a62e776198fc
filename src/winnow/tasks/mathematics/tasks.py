"""Tasks of mathematical problems: the same problems under several prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from winnow.tasks.benchmark import Request
from winnow.tasks.example import Judging, Task
from winnow.tasks.mathematics.prompts import Problem, Prompt
from winnow.tasks.sampling import sampled


class Definition(NamedTuple):
    """A task: problems under one prompt."""

    summary: str
    prompt: Prompt


def tasks_of(
    benchmark: str,
    problems: Sequence[Problem],
    definitions: Mapping[str, Definition],
    names: Sequence[str],
    judging: Judging,
    request: Request,
) -> list[Task]:
    """Tasks by name, all of them with the same sample of the problems."""
    return [
        Task(
            benchmark,
            name,
            judging,
            sampled([definitions[name].prompt.example(each) for each in problems], request.examples, request.seed),
        )
        for name in names
    ]
