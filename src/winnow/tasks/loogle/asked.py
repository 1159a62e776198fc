"""Questions of LooGLE's files, of which there are two forms: documents with their questions, and a row per question."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from winnow.tasks.benchmark import BenchmarkError
from winnow.tasks.records import Record, checked
from winnow.typed import TypedError, read_as

NOTHING = "none"
"""The field of a document that has no questions."""


class Asked(NamedTuple):
    """A question, or the wish for a summary."""

    name: str
    """Its place in the file: document and question, or row."""
    document: str
    question: str
    answers: tuple[str, ...]
    kind: str
    """Kind of a long-dependency question; empty for other tasks."""


@dataclass(frozen=True)
class _Document:
    """A document with its questions, as the first form has them."""

    input: str
    qa_pairs: str | list[dict[str, Any]]
    output: str | list[str] | None = None


@dataclass(frozen=True)
class _Pair:
    """A question of a document."""

    Q: str
    A: str | dict[str, str]
    type: str = ""


@dataclass(frozen=True)
class _Row:
    """A question with its document, as the hub has them now."""

    context: str
    question: str
    answer: str | list[str] | dict[str, str]
    task: str | None = None
    type: str | None = None


def asked(found: Sequence[Record]) -> list[Asked]:
    """All questions of a file. Raises BenchmarkError, with file and line, for what is none."""
    return [each for number, record in enumerate(found, start=1) for each in _of_record(number, record)]


def _of_record(number: int, record: Record) -> list[Asked]:
    if "context" in record.fields:
        row = checked(_Row, record)
        answers = _answers(row.answer, record)
        return [Asked(str(number), row.context, row.question, answers, row.type or row.task or "")]
    document = checked(_Document, record)
    if document.qa_pairs == NOTHING:
        return [Asked(str(number), document.input, "", _answers(document.output, record), "")]
    pairs = enumerate(_pairs(document.qa_pairs, record), start=1)
    return [
        Asked(f"{number}-{place}", document.input, pair.Q, _answers(pair.A, record), pair.type) for place, pair in pairs
    ]


def _pairs(found: str | list[dict[str, Any]], record: Record) -> list[_Pair]:
    """Pairs of a list, or of the text of a list in Python's spelling."""
    entries = _literal(found, record, "qa_pairs") if isinstance(found, str) else found
    names = ("Q", "A", "type")
    try:
        plain = read_as(list[dict[str, Any]], entries, "qa_pairs")
        return [
            read_as(_Pair, {name: entry[name] for name in names if name in entry}, f"qa_pairs[{place}]")
            for place, entry in enumerate(plain)
        ]
    except TypedError as problem:
        raise BenchmarkError(f"{record.place}: {problem}.") from None


def _answers(found: str | list[str] | dict[str, str] | None, record: Record) -> tuple[str, ...]:
    """Right answers; the entities of a cloze, which files keep by their masks."""
    if isinstance(found, str) and found.startswith("{'<mask-"):
        found = _literal(found, record, "answer")
    values = found.values() if isinstance(found, dict) else [found] if isinstance(found, str) else found
    answers = tuple(str(value) for value in values or ())
    if not any(answers) or NOTHING in answers:
        raise BenchmarkError(f"{record.place}: there is no right answer.")
    return answers


def _literal(text: str, record: Record, what: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise BenchmarkError(f"{record.place}: {what} is no list or object in Python's spelling.") from None
