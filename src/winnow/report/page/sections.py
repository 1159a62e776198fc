"""Sections of a report: runs whose results may stand in one table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from winnow.runs.folder import About, Run, missing_results
from winnow.runs.rows import Row


class Source(NamedTuple):
    """A run that numbers of a section come from."""

    number: int
    """From 1, among all runs of the report."""
    path: str
    about: About
    rows: int
    machines: tuple[int, ...]
    """Numbers of its rows' environments among those of the section."""
    finished: bool
    """False where results of it are still to come, as far as that was noted."""


class Origin(NamedTuple):
    """A row, and where it is from."""

    row: Row
    source: Source
    machine: int
    """Number of its environment among those of the section, from 1: times of different ones are kept apart."""


@dataclass
class Section:
    """Results of one model, benchmark, protocol and request, of one run or several."""

    key: str
    sources: list[Source] = field(default_factory=list)
    cells: dict[tuple[str, str, str], Origin] = field(default_factory=dict)
    """By task, example and method."""
    contents: dict[tuple[str, str], str] = field(default_factory=dict)
    """Hashes of the texts of examples, by task and example."""
    environments: list[dict[str, str]] = field(default_factory=list)
    """By machine, from number 1."""
    planned: dict[tuple[str, str], int] = field(default_factory=dict)
    """Examples that were asked, by task and method: the most of any run; none in runs of earlier versions."""

    @property
    def about(self) -> About:
        """Facts of its first run; model, benchmark, protocol and request are those of all of them."""
        return self.sources[0].about

    @property
    def measures(self) -> dict[str, str]:
        """The main measure of every task, in the order of the runs."""
        return {task: name for source in self.sources for task, name in source.about.measures.items()}

    def renamed(self, names: Mapping[str, str]) -> Section:
        """The section with other texts for its methods."""
        cells = {
            (task, example, names[method]): origin._replace(row=replace(origin.row, method=names[method]))
            for (task, example, method), origin in self.cells.items()
        }
        planned = {(task, names.get(method, method)): most for (task, method), most in self.planned.items()}
        return replace(self, cells=cells, planned=planned)

    @property
    def missing(self) -> int:
        """Results that are still to come, as far as that was noted."""
        return missing_results(self.planned, ((task, method) for task, _, method in self.cells))

    def takes(self, run: Run) -> bool:
        """True if the run contradicts nothing that is here: no other result, and no other texts of an example."""
        for row in run.rows:
            known = self.cells.get(_place(row))
            texts = self.contents.get((row.task, row.example), row.content)
            if texts != row.content or (known is not None and known.row.cell != row.cell):
                return False
        return True

    def add(self, number: int, run: Run) -> None:
        """Takes the rows that are not here already."""
        machines = tuple(self._machine(each) for each in run.environments)
        source = Source(number, str(run.path), run.about, len(run.rows), machines, not run.missing)
        self.sources.append(source)
        for place, most in run.planned.items():
            self.planned[place] = max(most, self.planned.get(place, 0))
        for row in run.rows:
            self.cells.setdefault(_place(row), Origin(row, source, self._machine(run.environment_of(row))))
            self.contents[row.task, row.example] = row.content

    def _machine(self, environment: dict[str, str]) -> int:
        if environment not in self.environments:
            self.environments.append(environment)
        return self.environments.index(environment) + 1


def sections_of(runs: Iterable[Run]) -> list[Section]:
    """All sections, in the order of their first runs.

    Runs share one if their models, benchmarks, protocols and requests are the same, and no result of one is another in
    the other.
    """
    found: list[Section] = []
    for number, run in enumerate(runs, start=1):
        key = _key(run.about)
        section = next((each for each in found if each.key == key and each.takes(run)), None)
        if section is None:
            section = Section(key)
            found.append(section)
        section.add(number, run)
    return found


def _key(about: About) -> str:
    facts = {
        "model": asdict(about.model),
        "benchmark": about.benchmark,
        "protocol": about.protocol,
        "request": about.request,
    }
    return json.dumps(facts, sort_keys=True)


def _place(row: Row) -> tuple[str, str, str]:
    return row.task, row.example, row.method
