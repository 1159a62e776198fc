"""`winnow methods`, and the catalog that it reads."""

from __future__ import annotations

import json

import pytest

import winnow
from winnow.commands.methods import CATALOG_PATH
from winnow.commands.write_catalog import catalog


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def test_methods_are_listed(winnow_run):
    code, out, _ = winnow_run("methods")
    assert code == 0
    assert all(record.name in out for record in winnow.methods())
    code, out, _ = winnow_run("methods", "--json")
    assert [entry["name"] for entry in json.loads(out)] == [record.name for record in winnow.methods()]
    code, out, _ = winnow_run("methods", "adakv")
    assert "arXiv 2407.11550" in out
    assert "floor" in out


def test_a_name_of_a_method_and_of_a_part_shows_both(winnow_run):
    _, out, _ = winnow_run("methods", "cokv")
    assert out.startswith("cokv ")
    assert "\n+cokv " in out
    _, earlier, _ = winnow_run("methods", "shapley")
    assert earlier.startswith("+cokv ")


def test_an_unknown_name_is_one_line_and_code_2(winnow_run):
    code, out, err = winnow_run("methods", "adakvv")
    assert (code, out) == (2, "")
    assert "did you mean 'adakv'" in err
    assert err.count("\n") == 1, err


def test_the_catalog_is_the_registry():
    written = CATALOG_PATH.read_text(encoding="utf-8")
    assert written == catalog(), "write it again: python -m winnow.commands.write_catalog"
