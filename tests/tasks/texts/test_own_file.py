"""Files of examples of one's own: every line is checked."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.benchmark_files import write_lines
from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.example import Task
from winnow.tasks.texts.own_file import FILE

LINE = {"context": "Anna has a cat.\n\n", "question": "What does Anna have?", "answers": ["a cat", "cat"]}


def load(path: Path, *rows: dict[str, Any], **changed: Any) -> list[Task]:
    return FILE.load(Request(count_tokens=len, data=write_lines(path / "mine.jsonl", rows), **changed))


def test_lines_need_little(tmp_path: Path) -> None:
    (task,) = load(tmp_path, LINE, LINE | {"answers": "a cat"})
    assert (task.benchmark, task.name, task.judging) == ("file", "file", ("exact_match", 64, True, False))
    assert [(each.name, each.answers) for each in task.examples] == [("1", ("a cat", "cat")), ("2", ("a cat",))]
    assert (task.examples[0].context, task.examples[0].question) == (LINE["context"], LINE["question"])


def test_lines_may_say_everything(tmp_path: Path) -> None:
    line = LINE | {
        "choices": ["a cat", "cat", "a dog"],
        "answer_prefix": "Answer:",
        "task": "pets",
        "metric": "classification",
        "max_new_tokens": 5,
        "chat_template": False,
        "first_line": True,
        "name": "anna",
        "facts": {"depth": 0.5, "length": 12, "kind": "pet"},
    }
    other, pets = load(tmp_path, LINE | {"task": "other", "choices": ["cat", "a cat"]}, line)
    assert (other.name, other.judging.metric) == ("other", "choice")
    assert (pets.name, pets.judging) == ("pets", ("classification", 5, False, True))
    (example,) = pets.examples
    assert (example.name, example.choices, example.answer_prefix) == ("anna", ("a cat", "cat", "a dog"), "Answer:")
    assert example.facts == {"depth": 0.5, "length": 12, "kind": "pet"}


def test_what_is_read_behind_a_prompt_has_room(tmp_path: Path) -> None:
    choice, fidelity = load(
        tmp_path,
        LINE | {"task": "a", "choices": ["cat", "a cat", "a guinea pig"]},
        LINE | {"task": "b", "metric": "fidelity", "answers": "a cat", "max_new_tokens": 1},
    )
    assert choice.judging.max_new_tokens == len("a guinea pig")
    assert fidelity.judging.max_new_tokens == len("a cat")


def test_tasks_and_samples_are_as_asked(tmp_path: Path) -> None:
    rows = [LINE | {"task": name} for name in ("a", "b") for _ in range(5)]
    assert [task.name for task in load(tmp_path, *rows, tasks=("b",))] == ["b"]
    assert [len(task.examples) for task in load(tmp_path, *rows, examples=2)] == [2, 2]
    with pytest.raises(BenchmarkError, match="file has no task 'c'"):
        load(tmp_path, *rows, tasks=("c",))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "misspelled": ({"anwser_prefix": "A"}, 'no "anwser_prefix" belongs there'),
    "type": ({"question": 3}, "question must be a text, not 3"),
    "answers": ({"answers": []}, "answers must hold a right answer"),
    "empty": ({"answers": ["a", " "]}, "none that is empty"),
    "context": ({"context": " \n"}, "context is empty"),
    "metric": ({"metric": "token_f2"}, "there is no metric 'token_f2': did you mean 'token_f1'"),
    "tokens": ({"max_new_tokens": 0}, "max_new_tokens must be a whole number from 1 to"),
    "choices": ({"metric": "choice"}, "choice needs choices"),
    "an empty choice": ({"choices": ["a cat", "cat", ""]}, "none that is empty"),
    "a choice twice": ({"choices": ["a cat", "cat", "cat"]}, "each of them once"),
    "one token": ({"metric": "fidelity", "answers": "x"}, "fidelity needs answers of at least two tokens"),
    "classes": ({"metric": "classification"}, "classification needs choices"),
    "among": ({"choices": ["a dog", "a horse"]}, "answers must be among the choices"),
    "facts": ({"facts": {"a": []}}, "facts"),
    "differs": ({"max_new_tokens": 7}, r"must be those of .*mine\.jsonl, line 1, as both are of the task 'file'"),
    "twice": ({"name": "1"}, "an earlier line also has the name '1'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_is_told(tmp_path: Path, name: str) -> None:
    changed, told = WRONG[name]
    with pytest.raises(BenchmarkError, match=rf"mine\.jsonl, line 2: .*{told}"):
        load(tmp_path, LINE, LINE | changed)


@pytest.mark.parametrize("missing", LINE)
def test_fields_that_must_be_there(tmp_path: Path, missing: str) -> None:
    with pytest.raises(BenchmarkError, match=f'line 1: there is no "{missing}"'):
        load(tmp_path, {name: value for name, value in LINE.items() if name != missing})


WORDS = st.text(min_size=1).filter(lambda text: text.strip() and "\ud800" not in text)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(WORDS, st.text(), st.lists(WORDS, min_size=1)), min_size=1, max_size=4))
def test_texts_come_out_as_they_went_in(rows: list[tuple[str, str, list[str]]]) -> None:
    lines = [{"context": context, "question": asked, "answers": answers} for context, asked, answers in rows]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mine.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        (task,) = FILE.load(Request(count_tokens=len, data=path))
    found = [(each.context, each.question, list(each.answers)) for each in task.examples]
    assert found == [(context, asked, answers) for context, asked, answers in rows]
