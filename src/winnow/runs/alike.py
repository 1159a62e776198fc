"""Runs that may be put side by side, and the reasons why others may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from winnow.runs.folder import Run, RunError
from winnow.tasks.protocol import FOR_PEOPLE
from winnow.typed import shown


def check_alike(runs: Sequence[Run], models: bool = False) -> list[str]:
    """Lines on what differs and may: versions, processors.

    models: True where models are what is compared. Raises RunError where benchmark, protocol, measures or (unless
    `models`) the model differ, naming in what.
    """
    first, *others = runs
    notes: dict[str, None] = {}
    for other in others:
        _check(first, other, models)
        notes.update(dict.fromkeys(_told(first.environment, other.environment)))
    return [f"The runs differ in {', '.join(notes)}."] if notes else []


def request_differences(first: Run, second: Run) -> str:
    """Seed, lengths and whatever else two runs were asked for differently; "" where that is the same."""
    return ", ".join(_told(first.about.request, second.about.request))


def _check(first: Run, second: Run, models: bool) -> None:
    one, two = first.about, second.about
    names = f"{first.path} and {second.path}"
    if one.benchmark != two.benchmark:
        raise RunError(f"{names} are of different benchmarks, {one.benchmark} and {two.benchmark}.")
    rules = [{name: each.protocol[name] for name in each.protocol.keys() - FOR_PEOPLE} for each in (one, two)]
    if differing := sorted(_told(*rules)):
        raise RunError(
            f"{names} were run under different protocols, so their numbers cannot be compared: {', '.join(differing)}."
        )
    tasks = {task: two.measures[task] for task in one.measures if task in two.measures}
    if differing := list(_told({task: one.measures[task] for task in tasks}, tasks)):
        raise RunError(f"{names} judge answers by different measures: {', '.join(differing)}.")
    unknown = {"prompts": None} if None in (one.model.prompts, two.model.prompts) else {}
    facts = [{**asdict(each.model), "name": "", **unknown} for each in (one, two)]
    if not models and (differing := list(_told(*facts))):
        raise RunError(
            f"{names} are of different models, {one.model.name} and {two.model.name}: {', '.join(differing)}. To "
            "compare models, say --models."
        )


def _told(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    """Differing entries: "name (this, that)"."""
    for name in dict.fromkeys([*first, *second]):
        if first.get(name) != second.get(name):
            yield f"{name} ({shown(first.get(name))}, {shown(second.get(name))})"
