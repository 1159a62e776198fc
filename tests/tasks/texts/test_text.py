"""Contexts at regular places of texts, and what follows them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.example import Example
from winnow.tasks.texts.text import CONTINUATION, TEXT


def words(text: str) -> int:
    return len(text.split())


def request(data: Path | None = None, **changed: Any) -> Request:
    return Request(count_tokens=words, data=data, **changed)


def numbered(path: Path, count: int, name: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(" ".join(f"{name}{number}" for number in range(count)) + "\n", encoding="utf-8")
    return path


def starts(examples: tuple[Example, ...]) -> list[int]:
    return [int(each.context.split()[0][1:]) for each in examples]


def test_what_follows_a_context_is_the_right_answer(tmp_path: Path) -> None:
    path = numbered(tmp_path / "text.txt", 3000)
    (task,) = TEXT.load(request(path, lengths=(100, 500), examples=5))
    assert task.judging == ("fidelity", 128, False, False)
    whole = path.read_text().strip()
    for each in task.examples:
        assert each.context + each.answers[0] in whole
        assert words(each.context) == each.facts["length"]
        assert words(each.answers[0]) == CONTINUATION
        assert each.answers[0].startswith(" w")
        assert each.question == ""
    assert [each.name for each in task.examples[:2]] == ["100-1", "100-2"]
    assert len({each.name for each in task.examples}) == 10


def test_places_are_regular_from_the_beginning_to_the_end(tmp_path: Path) -> None:
    (task,) = TEXT.load(request(numbered(tmp_path / "text.txt", 3000), lengths=(100,), examples=5))
    found = starts(task.examples)
    assert found[0] == 0
    assert 3000 - 100 - CONTINUATION - 70 <= found[-1] <= 3000 - 100 - CONTINUATION
    steps = [later - earlier for earlier, later in pairwise(found)]
    assert max(steps) - min(steps) < 0.2 * max(steps)


def test_documents_share_the_places_and_short_ones_have_none(tmp_path: Path) -> None:
    numbered(tmp_path / "texts" / "a.md", 2000, "a")
    numbered(tmp_path / "texts" / "deep" / "b.txt", 2000, "b")
    numbered(tmp_path / "texts" / "short.txt", 20, "s")
    numbered(tmp_path / "texts" / "program.py", 4000, "p")
    (task,) = TEXT.load(request(tmp_path / "texts", lengths=(100,), examples=6))
    assert [each.facts["document"] for each in task.examples] == ["a.md"] * 3 + ["deep/b.txt"] * 3


def test_without_data_there_is_prose_of_the_seed() -> None:
    first, again, other = (TEXT.load(request(lengths=(64,), examples=4, seed=seed))[0] for seed in (0, 0, 1))
    assert first == again
    assert first.examples[0].context != other.examples[0].context
    assert len({each.context for each in first.examples}) == 4
    assert len(TEXT.load(request(lengths=(64,)))[0].examples) == 16


def test_texts_that_are_too_short_are_told(tmp_path: Path) -> None:
    path = numbered(tmp_path / "text.txt", 200)
    with pytest.raises(BenchmarkError, match=r"text\.txt has 200 tokens, but 288 are needed: give a longer text"):
        TEXT.load(request(path, lengths=(100,)))
    (tmp_path / "text.txt").write_text(" \n")
    with pytest.raises(BenchmarkError, match="has no text: give --data with a text file"):
        TEXT.load(request(path))
    (tmp_path / "text.txt").write_bytes(b"\xff\xff")
    with pytest.raises(BenchmarkError, match="is not UTF-8"):
        TEXT.load(request(path))
    with pytest.raises(BenchmarkError, match=r"There is no .*nowhere"):
        TEXT.load(request(tmp_path / "nowhere"))
    with pytest.raises(BenchmarkError, match="text has no task 'texts'"):
        TEXT.load(request(path, tasks=("texts",)))
    with pytest.raises(BenchmarkError, match="at least one token, not 0"):
        TEXT.load(request(path, lengths=(0,)))
