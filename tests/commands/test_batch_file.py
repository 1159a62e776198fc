"""Questions from JSONL files; what `winnow run` says of bad lines is in its own tests."""

from __future__ import annotations

import json

import pytest

from winnow.commands.batch_file import Answered, Asked, read_answered, read_batch
from winnow.commands.inputs import InputError
from winnow.metrics import Expected


def test_questions_with_and_without_answers(tmp_path):
    path = tmp_path / "q.jsonl"
    (tmp_path / "d.txt").write_text("The sun is yellow.")
    lines = [{"question": "a?", "document": "d.txt", "answer": "x"}, {"text": "b?", "context": "c"}]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    assert read_batch(str(path), None) == [
        Asked("The sun is yellow.", "a?", Expected(("x",)), f"{path}, line 1"),
        Asked("c", "b?", None, f"{path}, line 3"),
    ]
    with pytest.raises(InputError, match=r"q.jsonl, line 3: there is no right answer"):
        read_answered(str(path))
    path.write_text(json.dumps(lines[0]))
    assert read_answered(str(path)) == [Answered("The sun is yellow.", "a?", Expected(("x",)))]


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_a_file_without_questions(tmp_path, text):
    (tmp_path / "q.jsonl").write_text(text)
    with pytest.raises(InputError, match="has no questions"):
        read_batch(str(tmp_path / "q.jsonl"), "A document.")
