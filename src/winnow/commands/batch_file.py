"""Questions from a JSONL file, checked line by line before any work starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from winnow.commands.inputs import STANDARD_INPUT, InputError, read_document, read_text
from winnow.errors import JsonError
from winnow.strict_json import parse_lines


@dataclass(frozen=True)
class Asked:
    """One question about one document."""

    document: str
    question: str
    answer: str | None = None
    """The right one, where it is known."""
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
    """One question about one document, with the right answer."""

    document: str
    question: str
    answer: str


def read_answered(path: str) -> list[Answered]:
    """The validation questions of a file as for `read_batch`, every one with a document and an answer of its own.

    Raises:
        InputError: names the line that cannot be used.
    """
    return [Answered(each.document, each.question, _known(each)) for each in read_batch(path, None)]


def _known(asked: Asked) -> str:
    if asked.answer is None:
        raise InputError(f'{asked.origin}: no answer, so nothing tells what is right; add "answer".')
    return asked.answer


def read_batch(path: str, default_document: str | None) -> list[Asked]:
    """The questions of a file, one JSON object a line; blank lines do not count.

    Keys: "question" (or "text"); "document", a path relative to the file, or "context", the document itself,
    or neither for `default_document`; "answer" if it is known. Others are ignored.

    Raises:
        InputError: names the line that cannot be used, or there is none.
    """
    documents = _Documents(Path(path).parent if path != STANDARD_INPUT else Path(), default_document)
    try:
        asked = [_asked(entry, f"{path}, line {number}", documents) for number, entry in parse_lines(read_text(path))]
    except JsonError as problem:
        raise InputError(f'{path}, {problem}; write {{"question": "...", "answer": "..."}}.') from None
    if not asked:
        raise InputError(f"{path} has no questions; give one JSON object a line.")
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
            raise InputError(f'{origin}: no document; add "document" or "context", or give --document.')
        return self._default


def _located(path: str, origin: str) -> str:
    try:
        return read_document(path)
    except InputError as problem:
        raise InputError(f"{origin}: {problem}") from None


def _asked(entry: dict[str, object], origin: str, documents: _Documents) -> Asked:
    question = next(_given_texts(entry, ("question", "text"), origin), None)
    if question is None:
        raise InputError(f'{origin}: no question; add "question".')
    answer = next(_given_texts(entry, ("answer",), origin), None)
    return Asked(
        document=documents.of(entry, origin),
        question=str(entry[question]),
        answer=None if answer is None else str(entry[answer]),
        origin=origin,
    )


def _given_texts(entry: dict[str, object], keys: tuple[str, ...], origin: str) -> Iterator[str]:
    """Those of the keys that the entry has. Raises InputError where one is not a text, or an empty one."""
    for key in keys:
        value = entry.get(key)
        if value is None:
            continue
        if not isinstance(value, str) or not value.strip():
            raise InputError(f'{origin}: "{key}" must be a text that is not empty.')
        yield key
