"""Folders of runs: absurd values in every field, contradictions, mixtures and damaged files, read by every command.

Every case ends in one of two ways: what is wrong is told in one line, with its file, or a result comes out.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from support.attack import seeds
from support.journals import crafted
from support.runs import ABOUT
from support.written_runs import rows_of, run_of, write_records, write_run
from winnow.cli import main
from winnow.errors import WinnowError
from winnow.estimate.journal import Journal
from winnow.runs.compare import compare_runs
from winnow.runs.export import csv_text, harness_files, json_text, kvpress_files
from winnow.runs.folder import RunError, read_run

pytestmark = pytest.mark.usefixtures("one_thread")

ABSURD: list[Any] = [
    *(1e308, -1e308, -1, 0, 10**400, 2**63, 1e-320, True, None, "", "9", "..", "../../up", "/", "a" * 5000, "\x1b[31m"),
    *("\x00", "[red]", "\ud800", " @ ", "__", [], [[]], {}, {"": {}}, {"a": None}, {"contains_all": 17}, [None]),
]
ROWS = [*rows_of("qa", "full", [1.0, 0.0, 1.0]), *rows_of("qa", "adakv @ 5%", [1.0, 1.0, 0.0])]


def use(folder: Path) -> None:
    """All that is done with a run, and written nowhere but in a folder of its own."""
    run = read_run(folder)
    compare_runs([run])
    assert csv_text(run)
    assert json_text(run)
    for files in (kvpress_files(run), harness_files(run)):
        for path in files:
            assert not path.is_absolute()
            assert ".." not in path.parts


def used(folder: Path) -> None:
    """Fails for errors that nobody thought of."""
    told = ""
    try:
        use(folder)
    except WinnowError as problem:
        told = str(problem)
    assert "\n" not in told
    assert len(told) < 20_000


def replaced(value: Any, rng: random.Random) -> Any:
    """A copy in which one value, however deep, is another; or a name is missing, or one too many."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        copy, name = dict(value), rng.choice(sorted(value))
        match rng.randrange(10):
            case 0:
                del copy[name]
            case 1:
                copy[rng.choice(["", "x", "é", "a" * 300])] = rng.choice(ABSURD)
            case _:
                copy[name] = replaced(value[name], rng)
        return copy
    return rng.choice(ABSURD)


def written(folder: Path, about: Any, rows: list[Any]) -> None:
    """A folder with values that no writer would write; half surrogate pairs and huge numbers go as they are."""
    write_records(folder, ABOUT, [])
    (folder / "run.json").write_text(json.dumps(about))
    journal = folder / "cells.jsonl"
    lines = [crafted(journal, row) if isinstance(row, dict) else json.dumps(row).encode() + b"\n" for row in rows]
    with journal.open("ab") as file:
        file.writelines(lines)


@pytest.mark.parametrize("seed", seeds(60, 600))
def test_absurd_values_are_told_or_harmless(seed, tmp_path):
    rng = random.Random(seed)
    about, rows = asdict(run_of(ROWS).about), [asdict(row) for row in ROWS]
    if rng.random() < 0.4:
        about = replaced(about, rng)
    else:
        rows = [replaced(row, rng) if rng.random() < 0.3 else row for row in rows]
    written(tmp_path / "run", about, rows)
    used(tmp_path / "run")


@pytest.mark.parametrize("absurd", ABSURD, ids=lambda value: repr(value)[:20])
def test_all_rows_may_agree_on_what_is_absurd(absurd, tmp_path):
    """A name that leads elsewhere, say, is the same in all rows."""
    for name in ("task", "method", "example", "context", "prediction", "facts", "answers", "slots", "prompt_tokens"):
        rows = [{**asdict(row), name: absurd} for row in ROWS]
        written(tmp_path / name, asdict(run_of(ROWS).about), rows)
        used(tmp_path / name)
    about = asdict(run_of(ROWS).about)
    written(tmp_path / "model", {**about, "model": {**about["model"], "name": absurd}}, [asdict(row) for row in ROWS])
    used(tmp_path / "model")


def test_a_cell_with_two_results_is_refused_by_both_lines(tmp_path):
    first, *others = [asdict(row) for row in ROWS]
    folder = write_records(tmp_path, run_of(ROWS).about, [first, *others, {**first, "prediction": "another"}])
    told = r"cells\.jsonl, line 8: the result differs from .* same cell in .*cells\.jsonl, line 2, .*Delete both"
    with pytest.raises(RunError, match=told):
        read_run(folder)


def test_a_cell_that_was_evaluated_twice_counts_once(tmp_path):
    first = asdict(ROWS[0])
    folder = write_records(tmp_path, run_of(ROWS).about, [first, {**first, "prefill_seconds": 9.0}])
    assert len(read_run(folder).rows) == 1


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"benchmark": "longbench"}, "a result of longbench, and the run is one of ruler"),
        ({"scores": {"contains_all": 1.5}}, "contains_all must be from 0 to 1, not 1.5"),
        ({"scores": {}}, "scores must be an object with names"),
        ({"slots": -1.0}, "slots must be a number from 0"),
        ({"held_bytes": 2**70}, "held_bytes must be a whole number from 0"),
        ({"prediction": None}, "prediction must be a text, not null"),
    ],
)
def test_rows_that_cannot_be_are_refused_by_line(tmp_path, changed, told):
    rows = [asdict(row) for row in ROWS]
    folder = write_records(tmp_path, run_of(ROWS).about, [rows[0], {**rows[1], **changed}])
    with pytest.raises(RunError, match=rf"cells\.jsonl, line 3: {told}"):
        read_run(folder)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused_by_line(tmp_path, number):
    folder = write_run(tmp_path, run_of(ROWS))
    path = folder / "cells.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace('"contains_all":', f'"contains_all":{number},"x":')
    path.write_text("".join(lines))
    with pytest.raises(WinnowError, match=r"cells\.jsonl, line 3"):
        read_run(folder)


def test_journals_of_different_runs_are_not_mixed(tmp_path):
    folder = write_run(tmp_path, run_of(ROWS))
    other = Journal.open(folder / "cells.2-of-2.jsonl", {"run": "another"})
    other.append(asdict(replace(ROWS[0], cell="x")))
    other.close()
    with pytest.raises(RunError, match=r"cells\.2-of-2\.jsonl and .*cells\.jsonl are of different runs"):
        read_run(folder)


def _torn(folder: Path) -> None:
    path = folder / "cells.jsonl"
    path.write_bytes(path.read_bytes()[:-30])


BROKEN: dict[str, tuple[Callable[[Path], Any], str | None]] = {
    "a last line that was being written": (_torn, None),
    "a later form": (lambda folder: _about(folder, winnow_run=2), "winnow_run must be 1, not 2"),
    "no JSON": (lambda folder: (folder / "run.json").write_text("{"), "run.json cannot be read"),
    "no text": (lambda folder: (folder / "run.json").write_bytes(b"\xff{}"), "not UTF-8"),
    "a list": (lambda folder: (folder / "run.json").write_text("[]"), "not a JSON object, but a list"),
    "a pipe": (lambda folder: _instead(folder / "run.json", os.mkfifo), "not a regular file"),
    "a directory": (lambda folder: _instead(folder / "run.json", os.mkdir), "is a directory"),
    "a journal that is a directory": (lambda folder: _instead(folder / "cells.jsonl", os.mkdir), "cells.jsonl"),
    "a journal that is a pipe": (lambda folder: _instead(folder / "cells.jsonl", os.mkfifo), "cells.jsonl"),
    "a journal of no run": (lambda folder: (folder / "cells.jsonl").write_text("{}\n"), "not a journal of Winnow"),
    "no journal": (lambda folder: (folder / "cells.jsonl").unlink(), "nothing to compare"),
}


def _about(folder: Path, **changed: Any) -> None:
    (folder / "run.json").write_text(json.dumps({**asdict(ABOUT), **changed}))


def _instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_are_told_in_one_line(case, tmp_path, capsys):
    broken, told = BROKEN[case]
    folder = write_run(tmp_path / "run", run_of(ROWS))
    broken(folder)
    code = main(["compare", str(folder)])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    if told is None:
        assert code == 0, printed.err
    else:
        assert code == 1
        assert told in printed.err.replace("\n", " ")
