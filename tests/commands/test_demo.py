"""`winnow demo`: what it prints and writes."""

from __future__ import annotations

import json
import sys

import pytest

from support.asked import DOCUMENT, write_asked
from winnow.commands import demo as demo_command
from winnow.files import check_own

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A short document to take the place of the bundled one."""
    folder = tmp_path_factory.mktemp("demo")
    write_asked(folder)
    return folder


@pytest.fixture
def short(folder, monkeypatch):
    """The demo asks about the short document."""
    monkeypatch.setattr(demo_command, "DOCUMENT_PATH", folder / "document.txt")
    questions = "\n".join(json.dumps({"kind": q.kind, "text": q.text, "answer": q.answer}) for q in DOCUMENT.questions)
    (folder / "demo.jsonl").write_text(questions, encoding="utf-8")
    monkeypatch.setattr(demo_command, "QUESTIONS_PATH", folder / "demo.jsonl")


@pytest.mark.usefixtures("short")
def test_demo_without_matplotlib_has_its_tables(winnow_run, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = winnow_run("demo", "--quick", "--out", "tables")
    assert code == 0
    assert err == 'No pictures will be drawn. Pictures need matplotlib: pip install "winnow-kv[plot]"\n'
    assert "Answered right" in out
    assert out.endswith("Written:\n  tables/demo.json\n")
    assert [path.name for path in (folder / "tables").iterdir()] == ["demo.json"]


@pytest.mark.usefixtures("short")
def test_demo_writes_its_results(winnow_run, folder):
    code, out, err = winnow_run("demo", "--quick", "--out", "results")
    assert code == 0, err
    assert DOCUMENT.questions[0].text in out
    results = json.loads((folder / "results" / "demo.json").read_text(encoding="utf-8"))
    assert results["protocol"]["question_seen_at_compression"] is True
    assert {score["method"] for score in results["scores"]} == set(demo_command.QUICK.methods)
    for name in ("accuracy.png", "kept-tokens.png"):
        assert f"results/{name}" in out
        assert (folder / "results" / name).stat().st_size > 10_000
    for path in (folder / "results").iterdir():
        check_own(path)


def test_demo_refuses_a_file_as_folder(winnow_run):
    code, out, err = winnow_run("demo", "--out", "document.txt")
    assert (code, out) == (1, "")
    assert "is a file" in err


@pytest.mark.parametrize("name", ["demo.json", "accuracy.png"])
def test_demo_replaces_no_file_of_others(winnow_run, folder, name):
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine" / name).write_text("precious")
    code, out, err = winnow_run("demo", "--quick", "--out", "mine")
    assert (code, out) == (1, "")
    assert err == f"mine/{name} was not written by winnow; give another folder, or --force to replace it.\n"
    assert (folder / "mine" / name).read_text() == "precious"
    (folder / "mine" / name).unlink()
