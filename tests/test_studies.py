"""Studies of pretrained models: the runs that their pages are made of."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from support.runs import ABOUT, ROW
from winnow.estimate.journal import Journal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from evaluated import Part, Study, records

PARTS = tuple(Part(name, name, (), ("full",), "10%") for name in ("done", "begun", "later"))


def test_pages_are_made_of_runs_that_have_rows(tmp_path: Path) -> None:
    """A run that was stopped before its first row has a description and a journal, and nothing to tell."""
    study = Study("A model", "model", tmp_path)
    for name, rows in (("done", [ROW]), ("begun", [])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(asdict(ABOUT)))
        journal = Journal.open(tmp_path / name / "cells.jsonl", {"run": "x"})
        for row in rows:
            journal.append(asdict(row))
        journal.close()
    runs = study.runs(PARTS)
    assert list(runs) == [PARTS[0]]
    assert study.run(PARTS[1]) is study.run(PARTS[2]) is None
    assert runs[PARTS[0]].rows == (ROW,)
    assert [each["part"] for each in records(study, PARTS)] == ["done"]
