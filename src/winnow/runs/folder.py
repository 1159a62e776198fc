"""The folder of a run: `run.json` says what it is, journals of cells hold its rows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from winnow.errors import JsonError, WinnowError
from winnow.estimate.journal import Journal
from winnow.files import LARGEST_TEXT, decode, reading
from winnow.runs.measures import measures
from winnow.runs.record import RowRecords
from winnow.runs.request import joined
from winnow.runs.rows import Count, Row
from winnow.strict_json import parse_object
from winnow.typed import OneOf, TypedError, read_as

VERSION = 1
ABOUT = "run.json"
CELLS = "cells*.jsonl"
"""One journal, or one for each shard."""


class RunError(WinnowError, ValueError):
    """A run's folder that cannot be read, or runs that do not go together."""


@dataclass(frozen=True)
class ModelFacts:
    """The model of a run."""

    name: str
    fingerprint: str
    """Hash of its weights and architecture."""
    dtype: str
    template: bool
    """True if it has a chat template."""
    quantized: str | None = None
    """Scheme of its weights ("int8", "gptq"); None for plain ones."""
    prompts: str | None = None
    """Hash of its tokenizer and chat template; None in runs of earlier versions, where it is not known."""

    @property
    def kind(self) -> str:
        """Dtype and scheme in words: "bfloat16", "bfloat16 with int8 weights"."""
        return self.dtype if self.quantized is None else f"{self.dtype} with {self.quantized} weights"


@dataclass(frozen=True)
class About:
    """Facts of a run, equal for all of its rows."""

    winnow_run: Annotated[int, OneOf((VERSION,))]
    """The version of this form."""
    model: ModelFacts
    benchmark: str
    protocol: dict[str, Any]
    """All fields of `winnow.tasks.protocol.Protocol`; "name" is its name."""
    request: dict[str, Any]
    """Seed, examples and lengths, and the hash of the texts."""
    measures: dict[str, str]
    """The main measure of every task."""
    environment: dict[str, str]
    """Processor, threads, device, and versions of winnow, torch, transformers and Python: of the first command, and of
    rows that have none of their own."""
    command: str
    """The commands that it was made with, a line each."""
    started: str
    """ISO date and time of the first one, UTC."""
    planned: dict[str, dict[str, Count]] = field(default_factory=dict)
    """Examples of every task by method, as many as its commands asked at least; none in runs of earlier versions."""

    def with_plan(self, planned: Mapping[str, Mapping[str, int]]) -> About:
        """The same with what another command asks; each number the larger one."""
        joined = {method: dict(tasks) for method, tasks in self.planned.items()}
        for method, tasks in planned.items():
            known = joined.setdefault(method, {})
            known.update({task: max(number, known.get(task, 0)) for task, number in tasks.items()})
        return replace(self, planned=joined)


@dataclass(frozen=True)
class Run:
    """A run and its rows, sorted by task, example and method."""

    path: Path
    about: About
    rows: tuple[Row, ...]

    def environment_of(self, row: Row) -> dict[str, str]:
        """The machine and the versions behind a row's times."""
        return row.environment or self.about.environment

    @property
    def environments(self) -> list[dict[str, str]]:
        """Those of all rows, in their order; the run's own where it has no rows."""
        found = {tuple(each.items()): each for each in map(self.environment_of, self.rows)}
        return list(found.values()) or [self.about.environment]

    @property
    def planned(self) -> dict[tuple[str, str], int]:
        """Examples by task and method, as many as were asked at least; empty where nobody noted them."""
        return {(task, name): most for name, tasks in self.about.planned.items() for task, most in tasks.items()}

    @property
    def missing(self) -> int:
        """Results that are still to come, as far as that was noted."""
        return missing_results(self.planned, ((row.task, row.method) for row in self.rows))

    @property
    def environment(self) -> dict[str, str]:
        """One for all rows, in which what differs stands side by side: "native (avx2) and native (zen4)"."""
        known = self.environments
        names = dict.fromkeys(name for each in known for name in each)
        return {name: " and ".join(dict.fromkeys(each[name] for each in known if name in each)) for name in names}


def missing_results(planned: Mapping[tuple[str, str], int], found: Iterable[tuple[str, str]]) -> int:
    """Results that are still to come. planned: examples by task and method; found: task and method of every result."""
    there = Counter(found)
    return sum(max(0, number - there[place]) for place, number in planned.items())


def unfinished(paths: Sequence[Path | str], missing: int, found: int) -> str:
    """A sentence on runs with results that are still to come."""
    names, are = " and ".join(map(str, paths)), "is" if len(paths) == 1 else "are"
    return f"{names} {are} not finished: {found:,} of {found + missing:,} results."


def read_about(folder: Path) -> About:
    """Raises RunError where the folder holds no run, FileError where its description cannot be read."""
    path = folder / ABOUT
    if not _exists(path):
        raise RunError(f"{folder} is not the folder of a run: it has no {ABOUT}. Give one that winnow eval wrote.")
    with reading(path) as file:
        text = decode(file.read(LARGEST_TEXT + 1), str(path))
    try:
        return read_as(About, parse_object(text))
    except (JsonError, TypedError) as problem:
        raise RunError(
            f"{path} cannot be read: {problem}. Delete it and repeat the command that began the run: winnow eval "
            "writes it anew, and keeps the results."
        ) from None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        # No name of a file; a folder that may not be looked into.
        return False


def going_on(folder: Path, about: About) -> About:
    """Facts of a run with those that its folder has already: commands, requests, measures and the beginning.

    Raises RunError where the folder holds a run of another model, benchmark, protocol or seed.
    """
    if not _exists(folder / ABOUT):
        return about
    there = read_about(folder)
    # Weights tell models apart; a folder may have been moved.
    old, new = (replace(each.model, name="", prompts=None) for each in (there, about))
    prompts = there.model.prompts or about.model.prompts
    cast = there.model.name == about.model.name and old.kind != new.kind
    facts = {
        f"dtype ({old.kind} there, {new.kind} here)" if cast else "model": (old, new),
        "tokenizer or chat template": (prompts, about.model.prompts or prompts),
        "benchmark": (there.benchmark, about.benchmark),
        "protocol": (there.protocol.get("name"), about.protocol.get("name")),
        **{name: (there.request.get(name), about.request.get(name)) for name in ("seed", "split", "fold")},
    }
    differing = [name for name, (first, second) in facts.items() if first != second]
    if differing:
        raise RunError(
            f"{folder} holds a run of another {' and '.join(differing)}: give another folder, or repeat the command "
            f"that began it ({there.command.splitlines()[0]})."
        )
    commands = dict.fromkeys([*there.command.splitlines(), about.command])
    measures = {**there.measures, **about.measures}
    return replace(
        about,
        model=replace(there.model, prompts=prompts),
        request=joined(there.request, about.request),
        measures=measures,
        environment=there.environment,
        command="\n".join(commands),
        started=there.started,
        planned=there.planned,
    )


def read_run(folder: Path) -> Run:
    """The rows of all journals in a folder, each cell once.

    Raises RunError for a folder without a run, journals of different runs, and, naming the line, a row that is none or
    that contradicts another, in the same cell or in another one of its example and method; JournalError for a journal
    that cannot be read.
    """
    about = read_about(folder)
    rows = _Rows(about)
    # One that was made, and stopped before its first line was written, has no records.
    journals = [Journal.existing(path) for path in _journals(folder)]
    for journal in journals:
        if journal.config != journals[0].config:
            raise RunError(f"{journals[0].path} and {journal.path} are of different runs: keep those of one.")
        for number, record in enumerate(journal.records(), start=2):
            rows.add(record, _Line(journal.path, number))
    return Run(folder, about, rows.ordered())


def rows_beside(journal: Journal) -> list[Row]:
    """Rows of a run that are not in this journal of it, but in others of its folder: those of shards.

    Raises RunError for a journal of another run, JournalError for one that cannot be read.
    """
    found = []
    for path in _journals(journal.path.parent):
        if path != journal.path:
            other = Journal.existing(path)
            if other.config != journal.config:
                raise RunError(f"{path} and {journal.path} are of different runs: keep those of one.")
            found += other.read(RowRecords())
    return found


def _journals(folder: Path) -> list[Path]:
    """Those in a folder that are not empty. Raises RunError where it cannot be looked into."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as problem:
        raise RunError(f"Cannot read {folder}: {problem.strerror}.") from None
    return [folder / name for name in names if fnmatchcase(name, CELLS) and not _is_empty(folder / name)]


def _is_empty(path: Path) -> bool:
    return os.path.isfile(path) and not os.path.getsize(path)


class _Line(NamedTuple):
    """The place of a row."""

    path: Path
    number: int

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}"


class _Rows:
    """Rows of a run by their cells."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._measures = measures()
        self._rows: dict[str, tuple[Row, _Line]] = {}
        self._cells: dict[tuple[str, str, str], str] = {}
        """By task, example and method."""

    def add(self, record: Mapping[str, Any], line: _Line) -> None:
        """Raises RunError for what is no row of this run, and for one that contradicts an earlier one."""
        try:
            row = read_as(Row, record)
        except TypedError as problem:
            raise RunError(f"{line}: {problem}.") from None
        if row.benchmark != self._about.benchmark:
            raise RunError(f"{line}: a result of {row.benchmark}, and the run is one of {self._about.benchmark}.")
        for name, score in row.scores.items():
            if name in self._measures and self._measures[name].percent and not 0 <= score <= 1:
                raise RunError(f"{line}: {name} must be from 0 to 1, not {score:g}.")
        earlier, place = self._rows.setdefault(row.cell, (row, line))
        if earlier is not row and _result(earlier) != _result(row):
            raise RunError(
                f"{line}: the result differs from that of the same cell in {place}, and nothing says which is right. "
                "Delete both lines, and winnow eval does that work again."
            )
        cell = self._cells.setdefault((row.task, row.example, row.method), row.cell)
        if cell != row.cell:
            raise RunError(
                f"{line}: the result of example {row.example} of {row.task} under {row.method} differs from that in "
                f"{self._rows[cell][1]}, which has other code, another table or other texts, and nothing says which is "
                "right. Delete the lines of one of them."
            )

    def ordered(self) -> tuple[Row, ...]:
        """All of them, by task, example and method."""
        rows = (row for row, _ in self._rows.values())
        return tuple(sorted(rows, key=lambda row: (row.task, row.example, row.method)))


def _result(row: Row) -> tuple[object, ...]:
    """All of a row that is the same whenever its cell is evaluated; times are not."""
    return row.task, row.example, row.content, row.method, row.scores, row.prediction, row.answers
