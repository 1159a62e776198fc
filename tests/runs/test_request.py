"""Requests of commands that made one run."""

from __future__ import annotations

import pytest

from winnow.runs.request import joined

ASKED = {"seed": 0, "examples": 13, "lengths": "2048", "tasks": "a, b", "texts": "t"}


@pytest.mark.parametrize("fewer", [{"examples": 2}, {"tasks": "b"}, {"examples": 1, "tasks": "a"}, {}])
def test_less_changes_nothing(fewer: dict[str, object]) -> None:
    less = {**ASKED, **fewer, "texts": "u" if fewer else "t"}
    assert joined(ASKED, less) == ASKED


def test_more_takes_its_place() -> None:
    for more in ({**ASKED, "examples": 20, "texts": "u"}, {**ASKED, "tasks": None, "examples": None, "texts": "u"}):
        assert joined(ASKED, more) == more


def test_something_else_is_added() -> None:
    found = joined(ASKED, {**ASKED, "lengths": "4096", "tasks": "b,c", "examples": 5, "texts": "u"})
    assert found == {**ASKED, "lengths": "2048,4096", "tasks": "a, b,c", "texts": found["texts"]}
    assert found["texts"] not in ("t", "u")


def test_what_a_request_does_not_have_is_not_added() -> None:
    assert joined({"seed": 0}, {"seed": 0}) == {"seed": 0}
    assert joined({"examples": "many"}, {"examples": 2}) == {"examples": None}
