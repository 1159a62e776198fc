"""Predictions: what every method said to every example, in a file for each task that is read when it is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from winnow.report.page.methods import MethodName
from winnow.report.page.quantities import SCORE
from winnow.report.page.results import RowValues
from winnow.report.page.slices import Slices
from winnow.runs.rows import Row

LARGEST = 8_000_000
"""Characters of a task's answers, at most; where they are more, examples are left out, evenly."""
LONGEST = 2000
"""Characters of a text, at most."""
_OVERHEAD = 20
"""Characters that an answer takes besides its text."""


class Predictions(NamedTuple):
    """Answers to the examples of a task, by every method."""

    task: str
    measure: str
    methods: tuple[str, ...]
    examples: tuple[dict[str, Any], ...]
    """Name, question, right answers, facts, and [text, score, truncated] of every method, or None."""
    most: int
    """Examples that there are."""


def predictions_of(
    slices: Slices, judged: RowValues, methods: Sequence[MethodName], measures: dict[str, str]
) -> Iterator[Predictions]:
    """Those of tasks that have answers; a task of continuations has none."""
    for task in slices.tasks:
        if SCORE not in judged.by_task[task]:
            continue
        asked: dict[str, dict[str, Row]] = {}
        for method in methods:
            for origin in slices.rows(method.text, task, None):
                asked.setdefault(origin.row.example, {})[method.text] = origin.row
        here = [method.text for method in methods if any(method.text in rows for rows in asked.values())]
        chosen = _evenly(sorted(asked, key=_natural), _room(asked))
        examples = tuple(_example(name, asked[name], here, judged) for name in chosen)
        yield Predictions(task, measures.get(task, SCORE), tuple(here), examples, len(asked))


def _room(asked: Mapping[str, Mapping[str, Row]]) -> int:
    """Examples that fit."""
    size = sum(_OVERHEAD + min(len(row.prediction), LONGEST) for rows in asked.values() for row in rows.values())
    return max(1, len(asked) * LARGEST // max(size, LARGEST))


def _example(name: str, rows: dict[str, Row], methods: Sequence[str], judged: RowValues) -> dict[str, Any]:
    any_row = next(iter(rows.values()))
    return {
        "name": name,
        "question": any_row.question,
        "answers": [_cut(answer) for answer in any_row.answers],
        "facts": any_row.facts,
        "said": [_said(rows[method], judged) if method in rows else None for method in methods],
    }


def _said(row: Row, judged: RowValues) -> list[Any]:
    score = judged.of(row).get(SCORE)
    return [_cut(row.prediction), None if score is None else round(score, 4), row.truncated]


def _evenly(names: Sequence[str], most: int) -> list[str]:
    return [names[index * len(names) // most] for index in range(most)] if len(names) > most else list(names)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Digits count as numbers: "example 2" stands before "example 10"."""
    parts: list[str] = []
    for character in name:
        if parts and parts[-1].isdecimal() == character.isdecimal():
            parts[-1] += character
        else:
            parts.append(character)
    return [(0, int(part), "") if part.isdecimal() and len(part) < 20 else (1, 0, part) for part in parts]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"
