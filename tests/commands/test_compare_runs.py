"""`winnow compare`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from support.processes import python
from support.written_runs import rows_of, run_of, write_run
from winnow.cli import main

GOOD = [1.0] * 30 + [0.0] * 10
BAD = [0.0] * 15 + [1.0] * 15 + [0.0] * 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [*rows_of("qa", "full", GOOD), *rows_of("qa", "snapkv @ 5%", BAD), *rows_of("qa", "adakv @ 5%", GOOD)[:38]]
    rows += [row for method in ("full", "snapkv @ 5%", "adakv @ 5%") for row in rows_of("hop", method, GOOD)]
    return write_run(tmp_path / "run", run_of(rows))


def test_the_table_tells_scores_intervals_and_verdicts(folder, capsys):
    assert main(["compare", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "ruler · protocol: plain · question seen at compression: yes" in printed
    assert "some/model (float32) · compared with: full" in printed
    (line,) = (line for line in printed.splitlines() if "snapkv" in line and "worse" in line and "-37.5" in line)
    assert line.split()[:7] == ["snapkv", "@", "5%", "40", "37.5", "75.0", "-37.5"]
    assert "mean of 2 tasks" in printed
    assert "2 examples of full have no result under adakv @ 5%." in printed
    assert "10,000 resamples, seed 0" in printed


def test_torch_is_not_needed():
    found = python("import sys, winnow.commands.compare; print('torch' in sys.modules)")
    assert found.stdout.strip() == "False", found.stderr


def test_every_comparison_as_a_line(folder, capsys):
    assert main(["compare", str(folder), "--json", "--baseline", "snapkv@5%", "--resamples", "500"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["task"], each["method"]) for each in entries] == [
        (task, method) for method in ("adakv @ 5%", "full") for task in ("hop", "qa", None)
    ]
    last = entries[-2]
    assert (last["protocol"], last["baseline"], last["verdict"]) == ("plain", "snapkv @ 5%", "better")
    assert last["low"] < last["difference"] == 0.375 < last["high"]
    assert (last["resamples"], last["level"], last["seed"]) == (500, 0.95, 0)


def test_a_table_as_a_file(folder, tmp_path, capsys):
    out = tmp_path / "compared.csv"
    assert main(["compare", str(folder), "--csv", str(out)]) == 0
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["task"], row["tasks"], row["method"], row["verdict"]) for row in rows][-1] == (
        "",
        "hop qa",
        "snapkv @ 5%",
        "worse",
    )
    capsys.readouterr()
    assert main(["compare", str(folder), "--csv", str(out)]) == 1
    assert "--force" in capsys.readouterr().err


def test_runs_are_named_where_there_are_several(folder, tmp_path, capsys):
    other = write_run(tmp_path / "other", run_of(rows_of("qa", "full", BAD)))
    assert main(["compare", str(folder), str(other)]) == 0
    printed = capsys.readouterr().out
    assert f"compared with: full in {folder}" in printed
    assert "other" in printed


def test_names_do_nothing_to_a_terminal(tmp_path, capsys):
    task, method = "q\x1b[31m[red]a", "a\x1b]0;title\x07 @ 5%"
    folder = write_run(tmp_path, run_of([*rows_of(task, "full", GOOD), *rows_of(task, method, GOOD)]))
    assert main(["compare", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert r"q\x1b[31m[red]a" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "not the folder of a run"),
        (["--baseline", "h2o @ 5%"], "There are no results of 'h2o @ 5%'"),
        (["--measure", "bleu"], "There is no measure 'bleu'"),
    ],
)
def test_mistakes_are_one_line(folder, capsys, arguments, told):
    assert main(["compare", *([str(folder)] if arguments[0].startswith("-") else []), *arguments]) == 1
    errors = capsys.readouterr().err
    assert told in errors
    assert "Traceback" not in errors
