"""Runs made up, in memory and as folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from support.runs import ABOUT, ROW
from winnow.estimate.journal import Journal
from winnow.runs.folder import About, Run
from winnow.runs.rows import Row

MEASURE = "contains_all"


def rows_of(
    task: str, method: str, scores: Iterable[float], contexts: Sequence[str] | None = None, measure: str = MEASURE
) -> list[Row]:
    """One row per score, about examples "0", "1", …; contexts: of each, its own where there are none."""
    return [
        replace(
            ROW,
            cell=f"{task}/{index}/{method}",
            task=task,
            example=str(index),
            content=f"{task}/{index}",
            context=f"{task}/{index}" if contexts is None else contexts[index],
            method=method,
            scores={measure: score},
        )
        for index, score in enumerate(scores)
    ]


def run_of(rows: Iterable[Row], path: str = "run", **about: Any) -> Run:
    """A run with these rows, judged by their first scores. about: what is different from `ABOUT`."""
    ordered = sorted(rows, key=lambda row: (row.task, row.example, row.method))
    measures = {row.task: row.measure for row in ordered}
    return Run(Path(path), replace(ABOUT, **{"measures": measures, **about}), tuple(ordered))


def write_run(folder: Path, run: Run) -> Path:
    """A run as a folder."""
    return write_records(folder, run.about, [asdict(row) for row in run.rows])


def write_records(folder: Path, about: About, records: Iterable[Mapping[str, Any]]) -> Path:
    """A folder with these records in one journal, whatever they are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(asdict(about)), encoding="utf-8")
    journal = Journal.open(folder / "cells.jsonl", {"run": "made up"})
    for record in records:
        journal.append(record)
    journal.close()
    return folder
