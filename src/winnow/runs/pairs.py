"""Pairs of rows about the same example, under two methods or in two runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from winnow.errors import closest
from winnow.runs.alike import request_differences
from winnow.runs.folder import Run, RunError
from winnow.runs.rows import Row


class Arm(NamedTuple):
    """One side of a comparison: a method in a run."""

    run: Run
    method: str

    @property
    def rows(self) -> dict[str, dict[str, Row]]:
        """Its rows, by task and example. Raises RunError for two results of one example."""
        found: dict[str, dict[str, Row]] = defaultdict(dict)
        for row in self.run.rows:
            if row.method == self.method and found[row.task].setdefault(row.example, row) is not row:
                raise RunError(
                    f"{self.run.path} has two results of example {row.example} of {row.task} under {row.method}, and "
                    "nothing says which is right: delete one of the lines."
                )
        return dict(found)


class Pairs(NamedTuple):
    """The rows of a task that both sides have, in the same order, and the numbers of those that one lacks."""

    task: str
    rows: list[Row]
    baseline: list[Row]
    missing: int
    """Examples of the baseline without a result of the other side."""
    missing_in_baseline: int

    @property
    def contexts(self) -> int:
        """The number of contexts, which several pairs may share."""
        return len({row.context for row in self.rows})


def arms(run: Run) -> list[Arm]:
    """All methods of a run by name, budgets from small to large."""
    return [Arm(run, method) for method in sorted({row.method for row in run.rows}, key=_by_numbers)]


def _by_numbers(method: str) -> list[str | float]:
    """Texts and numbers in turn, so that 5% comes before 10%."""
    parts = re.split(r"(\d+(?:\.\d+)?)", method)
    return [float(part) if index % 2 else part for index, part in enumerate(parts)]


def find_arm(runs: Iterable[Run], method: str) -> Arm:
    """The method in the first of the runs that has it; blanks do not count. Raises RunError where none does."""
    known = [arm for run in runs for arm in arms(run)]
    wanted = "".join(method.split())
    for arm in known:
        if "".join(arm.method.split()) == wanted:
            return arm
    raise RunError(
        f"There are no results of {method!r} to compare with; choose a method with --baseline: "
        f"{closest(method, {arm.method for arm in known})}"
    )


def pair(arm: Arm, baseline: Arm) -> list[Pairs]:
    """The pairs of every task that either side has, tasks in order of their names.

    Raises RunError where an example of one name is about different texts.
    """
    rows, others = arm.rows, baseline.rows
    found = []
    for task in sorted(rows.keys() | others.keys()):
        ours, theirs = rows.get(task, {}), others.get(task, {})
        both = [name for name in ours if name in theirs]
        for name in both:
            if ours[name].content != theirs[name].content:
                raise _other_texts(arm, baseline, ours[name])
        found.append(
            Pairs(
                task,
                [ours[name] for name in both],
                [theirs[name] for name in both],
                missing=len(theirs) - len(both),
                missing_in_baseline=len(ours) - len(both),
            )
        )
    return found


def _other_texts(arm: Arm, baseline: Arm, row: Row) -> RunError:
    asked = request_differences(baseline.run, arm.run)
    return RunError(
        f"Example {row.example} of {row.task} is about other texts in {arm.run.path} than in {baseline.run.path}"
        f"{f', which were asked for differently: {asked}' if asked else ''}. Only results about the same texts compare."
    )
