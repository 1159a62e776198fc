"""Texts that models say, and what of them is judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from winnow.runs.judging import judged
from winnow.tasks.example import Example, Judging


def found(said: str, judging: Judging, right: str) -> tuple[str, float]:
    """The prediction and its score, for a model that says a text."""
    tokenizer: Any = SimpleNamespace(decode=lambda tokens, skip_special_tokens: said)
    decoded = SimpleNamespace(tokens=[0], steps=1, seconds=0.1)
    reading: Any = SimpleNamespace(answers=lambda methods, most: [[(None, decoded)] for _ in methods])
    ((answer,),) = judged(tokenizer, reading, [None], [Example("1", "", "", (right,))], judging)  # type: ignore[list-item]
    return answer.text, answer.scores[judging.metric]


@pytest.mark.parametrize(("right", "score"), [("    return total", 1), ("return total", 0.86)])
def test_blanks_before_a_line_of_code_count(right: str, score: float) -> None:
    said = "    return total\n\n"
    assert found(said, Judging("code_similarity", 8), right) == (said, score)


def test_of_few_shot_tasks_the_first_line_is_judged() -> None:
    said = "\n\nthe red boat\nQuestion: and"
    assert found(said, Judging("token_f1", 8, first_line=True), "red boat") == (said, 1)
    assert found(said, Judging("token_f1", 8), "red boat") == (said, 2 / 3)
