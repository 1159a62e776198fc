"""Built-in needles with their spans, and a user's from a file."""

from __future__ import annotations

import pytest

from winnow.estimate.errors import NeedleError
from winnow.estimate.needle.examples import ProseExamples, TaskExamples, read_examples
from winnow.estimate.needle.settings import NeedleKind
from winnow.tasks.haystack.splitting import split_sentences


@pytest.mark.parametrize("kind", list(NeedleKind))
def test_spans_hold_neither_reasons_nor_wrong_answers(kind):
    for example in [*ProseExamples().examples(kind, 0), *TaskExamples(8).examples(kind, 3)]:
        assert example.needle.count(example.span) == 1
        assert example.answer in example.span or kind is not NeedleKind.R2
        if kind is NeedleKind.R2:
            statements = split_sentences(example.needle)
            assert statements.index(example.span) in (len(statements) - 1, len(statements) - 2)
            assert len(statements) >= 3
        else:
            assert example.span == example.needle


def test_both_answers_of_a_reasoning_needle_are_right_once():
    prose = ProseExamples().examples(NeedleKind.R2, 0)
    assert len({example.needle for example in prose}) == 1
    assert len({example.span for example in prose}) == len(prose) == 2
    places = [split_sentences(e.needle).index(e.span) for e in TaskExamples(4).examples(NeedleKind.R2, 0)]
    assert places == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", 'line 2: not a JSON object, but a list; give an object with "needle"'),
        ('{"needle": "a.", "question": "b?"}', 'line 2: "answer" is missing'),
        ('{"needle": "a.", "question": "b?", "answer": " "}', 'line 2: "answer" is empty or not text'),
        ('{"needle": "a.", "question": "b?", "answer": 3}', 'line 2: "answer" is empty or not text'),
        ('{"needle": "a.", "question": "b?", "answer": "c", "span": "d"}', "line 2: the span is not part of"),
        ('{"needle": "a.", "question": "b?", "answer": "c", "spam": "d"}', "line 2: there is no field 'spam'"),
    ],
)
def test_malformed_examples_are_named_by_line(tmp_path, line, said):
    path = tmp_path / "e.jsonl"
    path.write_text('{"needle": "a.", "question": "b?", "answer": "c"}\n' + line + "\n")
    with pytest.raises(NeedleError) as caught:
        read_examples(path)
    assert said in str(caught.value)


def test_example_files_that_are_none(tmp_path):
    (tmp_path / "blank.jsonl").write_text("\n")
    (tmp_path / "latin.jsonl").write_bytes("é".encode("latin-1"))
    for name, said in (("blank", "has no examples"), ("latin", "not UTF-8"), ("missing", "There is no file")):
        with pytest.raises(NeedleError, match=said):
            read_examples(tmp_path / f"{name}.jsonl")
