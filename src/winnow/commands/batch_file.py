"""Questions from a JSONL file, checked line by line before any work starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from winnow.commands.inputs import STANDARD_INPUT, InputError, read_document, read_text
from winnow.errors import JsonError
from winnow.metrics import DEFAULT_METRIC, Expected, Metric, MetricError, metric
from winnow.strict_json import parse_lines


@dataclass(frozen=True)
class Asked:
    """One question about one document."""

    document: str
    question: str
    expected: Expected | None = None
    """The right answers, where they are known."""
    origin: str = ""
    """The place of the question ("questions.jsonl, line 3"), for error texts."""


def texts_of(asked: Iterable[Asked]) -> list[tuple[str, str]]:
    """All documents and questions, each once, after what it is: ("the document of questions.jsonl, line 3", …)."""
    found: dict[str, str] = {}
    for each in asked:
        place = f" of {each.origin}" if each.origin else ""
        found.setdefault(each.document, f"the document{place}")
        found.setdefault(each.question, f"the question{place}")
    return [(name, text) for text, name in found.items()]


class Answered(NamedTuple):
    """One question about one document, with the right answers."""

    document: str
    question: str
    expected: Expected


def read_answered(path: str, metric_name: str = DEFAULT_METRIC) -> list[Answered]:
    """The validation questions of a file as for `read_batch`, every one with a document and an answer of its own.

    Raises:
        InputError: names the line that cannot be used.
        MetricError: there is no such metric, or a library that it needs is missing.
    """
    asked = read_batch(path, None)
    for each in asked:
        if each.expected is None:
            raise InputError(f'{each.origin}: there is no right answer to compare with; add "answer".')
    check_judgeable(asked, metric(metric_name))
    return [Answered(each.document, each.question, each.expected) for each in asked if each.expected is not None]


def check_judgeable(asked: Iterable[Asked], judged: Metric) -> None:
    """Raises InputError, naming the line, where a metric cannot judge answers to a question."""
    for each in asked:
        try:
            if each.expected is not None:
                judged.check(each.expected)
        except MetricError as problem:
            raise InputError(f"{each.origin}: {problem}") from None


def read_batch(path: str, default_document: str | None) -> list[Asked]:
    """The questions of a file, one JSON object a line; blank lines do not count.

    Keys: "question" (or "text"); "document", a path relative to the file, or "context", the document itself,
    or neither for `default_document`; "answer" or "answers" if one is known or several, and "choices" for metrics that
    want all classes. Others are ignored.

    Raises:
        InputError: names the line that cannot be used, or there is none.
    """
    documents = _Documents(Path(path).parent if path != STANDARD_INPUT else Path(), default_document)
    try:
        asked = [_asked(entry, f"{path}, line {number}", documents) for number, entry in parse_lines(read_text(path))]
    except JsonError as problem:
        raise InputError(f'{path}, {problem}; write {{"question": "...", "answer": "..."}}.') from None
    if not asked:
        raise InputError(f"{path} has no questions; write one JSON object per line.")
    return asked


class _Documents:
    """Every file that lines name, read once."""

    def __init__(self, folder: Path, default: str | None) -> None:
        self._folder = folder
        self._default = default
        self._read: dict[Path, str] = {}

    def of(self, entry: dict[str, object], origin: str) -> str:
        for key in _given_texts(entry, ("context", "document"), origin):
            if key == "context":
                return str(entry[key])
            path = self._folder / str(entry[key])
            if path not in self._read:
                self._read[path] = _located(str(path), origin)
            return self._read[path]
        if self._default is None:
            raise InputError(f'{origin}: there is no document; add "document" or "context", or give --document.')
        return self._default


def _located(path: str, origin: str) -> str:
    try:
        return read_document(path)
    except InputError as problem:
        raise InputError(f"{origin}: {problem}") from None


def _asked(entry: dict[str, object], origin: str, documents: _Documents) -> Asked:
    question = next(_given_texts(entry, ("question", "text"), origin), None)
    if question is None:
        raise InputError(f'{origin}: there is no question; add "question".')
    return Asked(
        document=documents.of(entry, origin),
        question=str(entry[question]),
        expected=_expected(entry, origin),
        origin=origin,
    )


def _expected(entry: dict[str, object], origin: str) -> Expected | None:
    answers = _texts(entry, "answer", origin) + _texts(entry, "answers", origin)
    return Expected(answers, _texts(entry, "choices", origin)) if answers else None


def _texts(entry: dict[str, object], key: str, origin: str) -> tuple[str, ...]:
    """The texts under a key: one, or a list of them. Raises InputError where one is none, or an empty one."""
    value = entry.get(key)
    if value is None:
        return ()
    found = value if isinstance(value, list) and value else [value]
    if not all(isinstance(text, str) and text.strip() for text in found):
        raise InputError(f'{origin}: "{key}" must be a non-empty text, or a list of such texts.')
    return tuple(found)


def _given_texts(entry: dict[str, object], keys: tuple[str, ...], origin: str) -> Iterator[str]:
    """Those of the keys that the entry has. Raises InputError where one is not a text, or an empty one."""
    for key in keys:
        value = entry.get(key)
        if value is None:
            continue
        if not isinstance(value, str) or not value.strip():
            raise InputError(f'{origin}: "{key}" must be a non-empty text.')
        yield key
