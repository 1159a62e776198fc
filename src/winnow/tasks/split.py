"""Validation and test examples of a task: no context is in validation and in the rest."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Literal

from winnow.tasks.example import Task
from winnow.tasks.protocol import HeldOut

Part = Literal["test", "validation", "rest"]
"""Examples that a protocol's published rows are of; those for tuning; all others than these."""


def divides(held_out: HeldOut | None, part: Part) -> bool:
    """True if a part is not all of the examples."""
    return held_out is not None and not (part == "test" and held_out.tested)


def part_of(task: Task, held_out: HeldOut | None, part: Part) -> Task:
    """The task with the examples of one part only; without any that are held out, all.

    The number of contexts that are held out is rounded to the nearest; their choice depends on the texts alone.
    """
    if held_out is None or not divides(held_out, part):
        return task
    contexts = sorted({example.context for example in task.examples}, key=lambda text: sha256(text.encode()).digest())
    validation = set(contexts[: round(held_out.share * len(contexts))])
    wanted = part == "validation"
    return replace(task, examples=tuple(each for each in task.examples if (each.context in validation) == wanted))
