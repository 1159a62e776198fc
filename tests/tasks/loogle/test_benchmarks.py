"""LooGLE's two forms of files, its prompts, and HeadKV's tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.benchmark_files import longbench_row, write_lines
from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.full_rows import LONG_DEPENDENCY
from winnow.tasks.loogle.benchmarks import LOOGLE, LOOGLE_HEADKV

TEXT = "A {long} text.\nWith 'quotes'."
PAIRS = [
    {"Q": "What's {first}?\n1. a\n2. b", "A": "2", "type": "computation", "S": ["evidence"]},
    {"Q": "In which order?", "A": "2,1", "type": "timeline_reorder", "S": []},
]
DOCUMENT = {"input": TEXT, "title": "A title", "qa_pairs": str(PAIRS), "output": "none"}
CLOZE = [{"Q": "<mask-1> met <mask-0>.", "A": {"<mask-0>": "Bob", "<mask-1>": "Anna"}, "S": "Anna met Bob."}]
# Templates of task2prompt.json, which str.format fills.
QUESTION = "Please answer the question based on the long texts below. \n{input}\nQuestion: {Q}\nAnswer: "
SUMMARY = "Please generate a summary of the below paper. \n{input}\n Summarization: "


def request(data: Path, **changed: Any) -> Request:
    return Request(count_tokens=len, data=data, **changed)


def test_documents_with_questions_become_an_example_each(tmp_path: Path) -> None:
    write_lines(tmp_path / "longdep_qa.jsonl", [DOCUMENT, DOCUMENT | {"qa_pairs": PAIRS[:1]}])
    (task,) = LOOGLE.load(request(tmp_path))
    assert [(each.name, each.facts["kind"]) for each in task.examples] == [
        ("1-1", "computation"),
        ("1-2", "timeline_reorder"),
        ("2-1", "computation"),
    ]
    for each, pair in zip(task.examples, PAIRS, strict=False):
        assert each.context + each.question == QUESTION.format(input=TEXT, Q=pair["Q"])
        assert each.answers == (pair["A"],)
    assert task.judging == ("token_f1", 500, True, False)
    assert len({each.context for each in task.examples}) == 1


def test_the_hub_s_form_gives_the_same_prompts(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"q{place}",
            "doc_id": "d",
            "context": TEXT,
            "question": pair["Q"],
            "answer": pair["A"],
            "type": pair["type"],
        }
        for place, pair in enumerate(PAIRS)
    ]
    write_lines(tmp_path / "old" / "longdep_qa.jsonl", [DOCUMENT])
    write_lines(tmp_path / "new" / "data" / "longdep_qa.jsonl", rows)
    (old,), (new,) = LOOGLE.load(request(tmp_path / "old")), LOOGLE.load(request(tmp_path / "new"))
    assert [(each.context, each.question, each.answers) for each in new.examples] == [
        (each.context, each.question, each.answers) for each in old.examples
    ]
    assert [each.name for each in new.examples] == ["1", "2"]


def test_summaries_and_clozes(tmp_path: Path) -> None:
    write_lines(tmp_path / "summarization.jsonl", [{"input": TEXT, "qa_pairs": "none", "output": "A summary."}])
    cloze = [{"input": TEXT, "qa_pairs": str(CLOZE), "output": "none"}, {"context": TEXT, "question": "<mask-0>?",
             "answer": "{'<mask-0>': 'Eve'}"}]  # fmt: skip
    write_lines(tmp_path / "shortdep_cloze.jsonl", cloze)
    summary, clozes = LOOGLE.load(request(tmp_path))
    assert summary.name == "longdep_summarization"
    assert summary.examples[0].context + summary.examples[0].question == SUMMARY.format(input=TEXT)
    assert summary.examples[0].answers == ("A summary.",)
    assert [each.answers for each in clozes.examples] == [("Bob", "Anna"), ("Eve",)]
    assert clozes.examples[0].question == "\n Question: <mask-1> met <mask-0>. What are the masked entities? \nAnswer:"
    assert "{'<mask-0>': 'Bob', '<mask-1>'" in clozes.examples[0].context


def test_headkv_draws_a_hundred_of_each_kind(tmp_path: Path) -> None:
    write_lines(tmp_path / "longdep_qa.jsonl", [DOCUMENT] * 120)
    tasks = LOOGLE_HEADKV.load(request(tmp_path))
    assert [(task.name, len(task.examples)) for task in tasks] == [("timeline_reorder", 100), ("computation", 100)]
    assert tasks[1].examples[0].question == "\nQuestion: What's {first}?\n1. a\n2. b\nAnswer:"
    assert [task.judging.max_new_tokens for task in tasks] == [32, 32]
    assert tuple(LOOGLE_HEADKV.tasks) == LONG_DEPENDENCY


def test_headkv_s_own_files_are_read_whole(tmp_path: Path) -> None:
    write_lines(tmp_path / "computation.jsonl", [longbench_row(number) for number in range(3)])
    (task,) = LOOGLE_HEADKV.load(request(tmp_path))
    assert [each.name for each in task.examples] == ["id0", "id1", "id2"]
    assert task.examples[0].answers == ("Anna", "Anna B.")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"qa_pairs": "[{'Q': open('x')}]"}, "line 1: qa_pairs is no list or object in Python's spelling"),
        ({"qa_pairs": "[" * 5000}, "line 1: qa_pairs is no list"),
        ({"qa_pairs": [{"Q": "What?"}]}, r'line 1: there is no "qa_pairs\[0\]\.A"'),
        ({"qa_pairs": [{"Q": 1, "A": "a"}]}, r"line 1: qa_pairs\[0\]\.Q must be a text, not 1"),
        ({"qa_pairs": "{}"}, "line 1: qa_pairs must be a list, not {}"),
        ({"qa_pairs": "none"}, "line 1: there is no right answer"),
        ({"input": None}, "line 1: input must be a text, not null"),
    ],
)
def test_wrong_documents_are_told(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    write_lines(tmp_path / "longdep_qa.jsonl", [DOCUMENT | changed])
    with pytest.raises(BenchmarkError, match=told):
        LOOGLE.load(request(tmp_path))


def test_missing_files_are_told(tmp_path: Path) -> None:
    write_lines(tmp_path / "other.jsonl", [DOCUMENT])
    with pytest.raises(BenchmarkError, match="has no file of a task of loogle: give --data with a folder with"):
        LOOGLE.load(request(tmp_path))
    with pytest.raises(BenchmarkError, match="has no file of computation"):
        LOOGLE_HEADKV.load(request(tmp_path, tasks=("computation",)))
