"""The folder of a run: `run.json` says what it is, journals of cells hold its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.errors import JsonError, WinnowError
from winnow.estimate.journal import Journal
from winnow.runs.rows import Row
from winnow.strict_json import parse_object
from winnow.typed import TypedError, read_as

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


@dataclass(frozen=True)
class About:
    """Facts of a run, equal for all of its rows."""

    winnow_run: int
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
    """Processor, threads, device, and versions of winnow, torch, transformers and Python."""
    command: str
    """The command that began it."""
    started: str
    """ISO date and time, UTC."""


@dataclass(frozen=True)
class Run:
    """A run and its rows, sorted by task, example and method."""

    path: Path
    about: About
    rows: tuple[Row, ...]


def read_about(folder: Path) -> About:
    """Raises RunError where the folder holds no run."""
    path = folder / ABOUT
    try:
        return read_as(About, parse_object(path.read_text(encoding="utf-8")))
    except OSError:
        raise RunError(f"{folder} is no folder of a run: it has no {ABOUT}. Give one that winnow eval wrote.") from None
    except (JsonError, TypedError, UnicodeDecodeError) as problem:
        raise RunError(f"{path} cannot be read: {problem}.") from None


def check_same_run(folder: Path, about: About) -> None:
    """Raises RunError where a folder holds a run of another model, benchmark, protocol or seed."""
    if not (folder / ABOUT).exists():
        return
    there = read_about(folder)
    facts = {
        "model": (there.model, about.model),
        "benchmark": (there.benchmark, about.benchmark),
        "protocol": (there.protocol.get("name"), about.protocol.get("name")),
        **{name: (there.request.get(name), about.request.get(name)) for name in ("seed", "split", "fold")},
    }
    differing = [name for name, (old, new) in facts.items() if old != new]
    if differing:
        raise RunError(
            f"{folder} holds a run of another {' and '.join(differing)}: give another folder, or the command that "
            f"began it ({there.command})."
        )


def read_run(folder: Path) -> Run:
    """The rows of all journals in a folder, each cell once.

    Raises RunError for a folder without a run or a row that is none; JournalError for a journal that cannot be read.
    """
    about = read_about(folder)
    rows: dict[str, Row] = {}
    for path in sorted(folder.glob(CELLS)):
        for number, record in enumerate(Journal.existing(path).records(), start=2):
            try:
                row = read_as(Row, record)
            except TypedError as problem:
                raise RunError(f"{path}, line {number}: {problem}.") from None
            rows.setdefault(row.cell, row)
    return Run(folder, about, tuple(sorted(rows.values(), key=lambda row: (row.task, row.example, row.method))))
