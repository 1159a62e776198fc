"""Validation and test examples of a task: no context is in both."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Literal

from winnow.tasks.example import Task

Part = Literal["test", "validation"]


def part_of(task: Task, validation: float, part: Part) -> Task:
    """The task with the examples of one part only.

    validation: share of the contexts that is held out, rounded to the nearest; their choice depends on the texts alone.
    """
    contexts = sorted({example.context for example in task.examples}, key=lambda text: sha256(text.encode()).digest())
    held_out = set(contexts[: round(validation * len(contexts))])
    wanted = part == "validation"
    return replace(task, examples=tuple(each for each in task.examples if (each.context in held_out) == wanted))
