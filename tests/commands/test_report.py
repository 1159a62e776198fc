"""`winnow report` on the command line."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from support.report_runs import HIDDEN, SEEN, ruler_rows, write_run
from support.runs import ABOUT, ROW
from winnow.cli import main

pytest.importorskip("plotly")


def results(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "data" / "results.json").read_text(encoding="utf-8"))
    return found


def test_runs_become_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "seen", SEEN, ruler_rows(examples=1))
    write_run(tmp_path / "runs" / "hidden", HIDDEN, ruler_rows(seen=False, examples=1))
    out = tmp_path / "out"
    # A folder of runs stands for all of them.
    assert main(["report", str(tmp_path / "runs"), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert f"Written: {out / 'index.html'}" in said.out
    found = results(out)
    assert found["title"] == "ruler · Qwen2.5-Coder-0.5B-Instruct"
    assert [section["protocol"]["question_seen"] for section in found["sections"]] == [False, True]  # type: ignore[attr-defined]
    assert {path.name for path in out.iterdir()} == {"index.html", "report.css", "report.js", "plotly.min.js", "data"}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_title_and_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = write_run(tmp_path / "run", ABOUT, [ROW]), tmp_path / "out"
    assert main(["report", str(run), "--out", str(out)]) == 0
    assert main(["report", str(run), "--out", str(out)]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["report", str(run), "--out", str(out), "--force", "--title", "Ours & theirs"]) == 0
    assert "Ours &amp; theirs</h1>" in (out / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["nothing", "empty", "file"])
def test_no_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    assert main(["report", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 1
    assert "is not the folder of a run" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_number_that_cannot_be_drawn_is_left_out(tmp_path: Path) -> None:
    rows = [
        replace(ROW, cell=f"{depth}", example=f"{number}", facts={"length": 1024, "depth": depth})
        for number, depth in enumerate((10**400, 0, 50))
    ]
    run = write_run(tmp_path / "run", ABOUT, rows)
    assert main(["report", str(run), "--out", str(tmp_path / "out")]) == 0


def test_a_folder_that_cannot_be_looked_into_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: str) -> list[str]:
        raise PermissionError(13, "Permission denied", str(folder))

    run = write_run(tmp_path / "run", ABOUT, [ROW])
    monkeypatch.setattr(os, "listdir", refused)
    for folder in (run, tmp_path):
        assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 1
        assert f"Cannot read {folder}: Permission denied." in capsys.readouterr().err


def test_a_run_without_rows_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", ABOUT, [])
    assert main(["report", str(run), "--out", str(tmp_path / "out")]) == 1
    assert "without a finished result" in capsys.readouterr().err


def test_a_run_that_goes_on_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ABOUT, [ROW, replace(ROW, cell="b", example="2")])
    journal = run / "cells.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    assert main(["report", str(run), "--out", str(tmp_path / "out")]) == 0


def test_without_plotly_nothing_is_worked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", ABOUT, [ROW])
    monkeypatch.setattr("winnow.report.page.plotly.find_spec", lambda name: None)
    assert main(["report", str(run), "--out", str(tmp_path / "out")]) == 1
    assert 'pip install "winnow-kv[report]"' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", ABOUT, [ROW])

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("winnow.files.os.fsync", interrupted)
    assert main(["report", str(run), "--out", str(tmp_path / "out")]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_that_has_just_begun_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "done", ABOUT, [ROW])
    write_run(tmp_path / "runs" / "begun", ABOUT, [])
    (write_run(tmp_path / "runs" / "made", ABOUT, []) / "cells.jsonl").write_text("")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().err
    for name in ("begun", "made"):
        assert f"{tmp_path / 'runs' / name} is a run without a finished result" in told
    named = [str(tmp_path / "runs" / name) for name in ("done", "begun")]
    assert main(["report", *named, "--out", str(tmp_path / "other")]) == 1
