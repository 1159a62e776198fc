"""Slices: the examples that a number is about, and the rows of each."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from winnow.report.page.sections import Origin, Section
from winnow.runs.rows import Row
from winnow.tasks import registry
from winnow.tasks.benchmark import UnknownBenchmark

ALL_TASKS = "all tasks"
_MOST_LENGTHS = 16
"""Different lengths up to which they are those that were asked for; more are lengths as texts happen to have them."""


class Slice(NamedTuple):
    """Some of the examples."""

    name: str
    tasks: tuple[str, ...]
    """Several for a mean, to which every task counts the same."""
    length: int | None
    """None for all lengths."""


class Slices:
    """The rows of a section by method, task and length."""

    def __init__(self, section: Section) -> None:
        self._groups = _groups(section.about.benchmark)
        self._rows: dict[tuple[str, str, int | None], list[Origin]] = defaultdict(list)
        tasks = dict.fromkeys(section.measures)
        for origin in section.cells.values():
            row = origin.row
            tasks[row.task] = None
            self._rows[row.method, row.task, None].append(origin)
            if (length := number(row, "length")) is not None:
                self._rows[row.method, row.task, int(length)].append(origin)
        self._planned: dict[str, int] = {}
        for (task, _), most in section.planned.items():
            self._planned[task] = max(most, self._planned.get(task, 0))
        present = {task for _, task, _ in self._rows}
        self.tasks = [task for task in tasks if task in present]
        found = sorted({length for _, _, length in self._rows if length is not None})
        self.lengths = found if 1 < len(found) <= _MOST_LENGTHS else []

    def all(self) -> Iterator[Slice]:
        """The mean over tasks first, then those that papers print, then each task; the same for every length."""
        for length in (None, *self.lengths):
            if len(self.tasks) > 1:
                yield Slice(ALL_TASKS, tuple(self.tasks), length)
            for name, tasks in self._groups.items():
                if 1 < len(tasks) < len(self.tasks) and set(tasks) <= set(self.tasks):
                    yield Slice(name, tasks, length)
            for task in self.tasks:
                yield Slice(task, (task,), length)

    def planned(self, task: str, length: int | None) -> int:
        """Examples of a task that some method is to be asked, as far as that was noted; of single lengths it is not."""
        return self._planned.get(task, 0) if length is None else 0

    def rows(self, method: str, task: str, length: int | None) -> Sequence[Origin]:
        """Rows of a method on a task."""
        return self._rows.get((method, task, length), ())


def _groups(benchmark: str) -> Mapping[str, tuple[str, ...]]:
    """Tasks whose mean papers print; none for a benchmark that this version does not know."""
    try:
        return registry.benchmark(benchmark).groups
    except UnknownBenchmark:
        return {}


def number(row: Row, fact: str) -> float | None:
    """A fact of an example, where it is a number that can be drawn."""
    value = row.facts.get(fact)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) <= sys.float_info.max else None
