"""Runs that may stand in one table, and those that may not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.runs import ABOUT, ROW
from winnow.report.page.sections import sections_of
from winnow.runs.folder import About, ModelFacts, Run
from winnow.runs.rows import Row

OTHER = replace(ROW, cell="b", method="full")


def run(about: About = ABOUT, *rows: Row) -> Run:
    return Run(Path("run"), about, rows or (ROW,))


def test_parts_of_one_benchmark_share_a_section() -> None:
    (section,) = sections_of([run(ABOUT, ROW), run(ABOUT, ROW, OTHER)])
    assert [origin.row for origin in section.cells.values()] == [ROW, OTHER]
    # A result that both have is the first one's.
    assert [origin.source.number for origin in section.cells.values()] == [1, 2]


@pytest.mark.parametrize(
    "other",
    [
        replace(ABOUT, protocol={**ABOUT.protocol, "question_seen": False}),
        replace(ABOUT, protocol={**ABOUT.protocol, "name": "another"}),
        replace(ABOUT, benchmark="longbench"),
        replace(ABOUT, request={"seed": 1}),
        replace(ABOUT, model=ModelFacts("some/model", "4567", "float32", template=True)),
        replace(ABOUT, model=ModelFacts("some/model", "0123", "bfloat16", template=True)),
    ],
    ids=["question", "protocol", "benchmark", "request", "weights", "dtype"],
)
def test_what_cannot_be_compared_is_apart(other: About) -> None:
    sections = sections_of([run(), run(other, OTHER), run(ABOUT, OTHER)])
    assert [[source.number for source in section.sources] for section in sections] == [[1, 3], [2]]


def test_another_result_for_the_same_example_begins_a_section_of_its_own() -> None:
    again = replace(ROW, cell="c", scores={"contains_all": 0.0})
    sections = sections_of([run(), run(ABOUT, again, OTHER)])
    assert [len(section.cells) for section in sections] == [1, 2]


def test_machines_are_counted_by_their_environments() -> None:
    slow = replace(ABOUT, environment={"processor": "a slow one"})
    rows = [replace(ROW, cell=str(number), example=str(number)) for number in range(3)]
    (section,) = sections_of([run(about, row) for about, row in zip((ABOUT, slow, ABOUT), rows, strict=True)])
    assert [source.machines for source in section.sources] == [(1,), (2,), (1,)]
    assert section.environments == [ABOUT.environment, slow.environment]


def test_rows_of_a_run_that_went_on_elsewhere_are_of_two_machines() -> None:
    slow = {"processor": "a slow one"}
    later = replace(ROW, cell="b", example="2", environment=slow)
    (section,) = sections_of([run(ABOUT, ROW, later)])
    assert section.sources[0].machines == (1, 2)
    assert [origin.machine for origin in section.cells.values()] == [1, 2]
    assert section.environments == [ABOUT.environment, slow]


def test_other_texts_of_an_example_begin_a_section_of_its_own_under_any_method() -> None:
    sections = sections_of([run(), run(ABOUT, replace(OTHER, content="c2"))])
    assert [len(section.cells) for section in sections] == [1, 1]


def test_what_was_asked_is_the_most_of_any_run() -> None:
    plans = [{ROW.method: {ROW.task: most}} for most in (3, 9, 5)]
    (section,) = sections_of([run(replace(ABOUT, planned=plan)) for plan in plans])
    assert section.planned == {(ROW.task, ROW.method): 9}
