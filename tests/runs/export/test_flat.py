"""Rows in one file, read back."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, replace

import pytest

from support.written_runs import rows_of, run_of
from winnow.runs.export import csv_text, json_text

ODD = 'a "quoted", text,\nof three lines;\r ü – 何\u2028 end'


@pytest.fixture
def run():
    rows = [*rows_of("qa", "full", [1.0, 0.0]), *rows_of("text", "full", [2.5], measure="nll")]
    rows[0] = replace(rows[0], prediction=ODD, answers=[ODD, "7"], facts={"length": 1024, "depth": 0.5})
    return run_of(rows)


def test_a_table_has_a_row_for_every_result(run):
    found = list(csv.DictReader(io.StringIO(csv_text(run), newline="")))
    assert [row["example"] for row in found] == ["0", "1", "0"]
    assert found[0]["prediction"] == ODD
    assert json.loads(found[0]["answers"]) == [ODD, "7"]
    assert (found[0]["score_contains_all"], found[0]["score_nll"], found[2]["score_nll"]) == ("1.0", "", "2.5")
    assert (found[0]["fact_depth"], found[1]["fact_depth"], found[1]["fact_length"]) == ("0.5", "", "1024")
    assert (found[0]["model"], found[0]["protocol"], found[0]["method"]) == ("some/model", "plain", "full")


def test_a_table_has_the_environment_of_every_result(run):
    later = replace(run.rows[1], environment={"threads": "4"})
    found = list(csv.DictReader(io.StringIO(csv_text(replace(run, rows=(run.rows[0], later))), newline="")))
    assert [(row["environment_processor"], row["environment_threads"]) for row in found] == [
        ("some processor", ""),
        ("", "4"),
    ]


def test_pandas_reads_the_table(run):
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(io.StringIO(csv_text(run)))
    assert table["prediction"][0] == ODD
    assert table.groupby("task")["score_contains_all"].mean()["qa"] == 0.5


def test_json_has_all_that_the_run_has(run):
    found = json.loads(json_text(run))
    assert found["about"] == asdict(run.about)
    assert found["rows"] == [asdict(row) for row in run.rows]


def test_lines_end_as_rfc_4180_has_them(run):
    first, rest = csv_text(run).split("\n", 1)
    assert first.endswith("\r")
    assert rest.endswith("\r\n")
