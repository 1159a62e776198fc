"""`winnow export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.written_runs import rows_of, run_of, write_run
from winnow.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [row for method in ("full", "adakv @ 10%") for row in rows_of("qa_1", method, [1.0, 0.0])]
    return write_run(tmp_path / "run", run_of(rows))


@pytest.mark.parametrize("form", ["csv", "json"])
def test_one_file(folder, tmp_path, form):
    out = tmp_path / f"rows.{form}"
    assert main(["export", str(folder), "--to", form, "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert len(json.loads(text)["rows"]) == 4 if form == "json" else len(text.splitlines()) == 5


@pytest.mark.parametrize(("form", "name"), [("kvpress", "metrics.json"), ("lm-eval", "results_*.json")])
def test_a_folder_for_every_method(folder, tmp_path, capsys, form, name):
    out = tmp_path / "out"
    assert main(["export", str(folder), "--to", form, "-o", str(out)]) == 0
    assert len(list(out.rglob(name))) == 2
    assert "Written:" in capsys.readouterr().err
    assert main(["export", str(folder), "--to", form, "-o", str(out)]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["export", str(folder), "--to", form, "-o", str(out), "--force"]) == 0


def test_a_run_without_results_is_told(tmp_path, capsys):
    empty = write_run(tmp_path / "run", run_of([]))
    assert main(["export", str(empty), "--to", "csv", "--out", str(tmp_path / "a.csv")]) == 1
    assert "no results yet" in capsys.readouterr().err
