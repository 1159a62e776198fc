"""Calls of tools in the text of an answer, found while it comes; what is none stays text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol
from uuid import uuid4

from transformers import PreTrainedTokenizerBase

from winnow.serve.marks import Mark, Without
from winnow.serve.rules import Rules, Special

OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""Around the JSON of a call, as Hermes and Qwen write it."""
MARKS: Mapping[str, str] = {"open_pattern": rf"{OPEN}\s*\{{", "close": CLOSE}
"""The first may be a word of an answer, which no object of JSON follows."""
_BARE = '{"name":'
"""Begins a call without marks, whatever its space."""


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a tool. Two may say the same."""

    name: str
    arguments: str
    """A JSON object."""
    id: str = field(default_factory=lambda: uuid4().hex[:9])
    """Nine letters and digits, as templates of Mistral's take no others."""


Part = str | Call


class Reader(Protocol):
    """Parts of an answer, in order."""

    def add(self, text: str, special: bool = False) -> list[Part]:
        """Some more text; returns the parts that are certain now. special: it is a special token, and no word."""

    def end(self, cut: bool = False) -> list[Part]:
        """No text comes any more; returns what was held back. cut: the model did not end the answer itself."""


@dataclass(frozen=True)
class Form:
    """The way in which a model writes calls."""

    reader: Callable[[], Reader]
    """Makes what finds them in an answer."""
    special: frozenset[int] = frozenset()
    """Tokens that may mark a call, and are no words."""
    grammar: Callable[[Rules, Special], str] | None = None
    """Makes the grammar of answers that keep rules; None where it is not known."""


class Marked:
    """Reads calls between two marks. One that is not closed ends with the answer, if the model ended that itself."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        marks: Mapping[str, Any],
        calls_of: Callable[[str], Sequence[Call]],
        anew: str | None = None,
    ) -> None:
        """marks: "open" or "open_pattern", "close" or "close_pattern", as transformers' response templates have them.

        calls_of: of a text from mark to mark; raises anything where it has none. anew: with its last place in such a
        text a call may begin where none began before.
        """
        self._tokenizer = tokenizer
        self._opens, self._closes = _how(marks, "open"), _how(marks, "close") or {"open_pattern": "(?!)"}
        self._calls_of = calls_of
        self._anew = anew
        self._without = Without()
        self._marked: str | None = None
        """Text from a mark on that is not closed yet."""
        self._next = self._awaited()

    def add(self, text: str, special: bool = False) -> list[Part]:
        """Some more text; returns the parts that are certain now."""
        self._without.came(text, special)
        return self._parts(text, end=False)

    def end(self, cut: bool = False) -> list[Part]:
        """No text comes any more; returns what was held back."""
        parts = self._parts("", end=True)
        if self._marked is not None:
            # What is cut off would be a call with other arguments. The token that ended the answer is none of them.
            parts += [self._without.went(self._marked)] if cut else self._read(self._marked, self._without.last())
        return parts

    def _parts(self, text: str, end: bool) -> list[Part]:
        parts: list[Part] = []
        while True:
            before = self._next.add(text, end)
            if self._marked is not None:
                self._marked += before
            elif before:
                parts.append(self._without.went(before))
            if self._next.behind is None:
                return parts
            mark, text = self._next.found, self._next.behind
            if self._marked is None:
                self._marked = mark
            else:
                parts += self._read(self._marked + mark)
                self._marked = None
            self._next = self._awaited()

    def _awaited(self) -> Mark:
        return Mark(self._tokenizer, self._opens if self._marked is None else self._closes)

    def _read(self, marked: str, behind: int = 0) -> list[Part]:
        """Parts of a text from mark to mark; behind: characters at its end that are no part of a call."""
        for start in (0, -1 if self._anew is None else marked.rfind(self._anew, 1)):
            if start < 0:
                break
            text = marked[start : len(marked) - behind]
            try:
                calls = self._calls_of(text)
            except Exception:  # perhaps a program of the tokenizer's, over values that a request chose
                continue
            words = self._without.went(marked[:start])
            self._without.went(marked[start:])
            # Marks may have space within them that separates the words around a call.
            parts: list[Part] = [words, text[: -len(text.lstrip())], *calls, text[len(text.rstrip()) :]]
            return [part for part in parts if part]
        return [self._without.went(marked)]


class Bare:
    """Reads an answer that is nothing but the JSON of a call, as Llama 3 writes it."""

    def __init__(self, names: Sequence[str]) -> None:
        """names: those of the tools; other JSON is an answer."""
        self._names = names
        self._waiting = ""
        self._may_call = True

    def add(self, text: str, special: bool = False) -> list[Part]:
        """Some more text; returns the parts that are certain now."""
        if special:
            return []
        if not self._may_call:
            return [text]
        self._waiting += text
        begun = "".join(self._waiting[: 8 * len(_BARE)].split())
        self._may_call = begun.startswith(_BARE) or _BARE.startswith(begun)
        return [] if self._may_call else [self._waiting]

    def end(self, cut: bool = False) -> list[Part]:
        """No text comes any more; returns what was held back. JSON that is whole was not cut."""
        if not (self._may_call and self._waiting):
            return []
        try:
            call = call_of(json_of(self._waiting))
        except (ValueError, RecursionError):
            return [self._waiting]
        return [call if call.name in self._names else self._waiting]


def _how(marks: Mapping[str, Any], what: str) -> dict[str, Any]:
    """One of two marks, as if it were to open something."""
    found = {"open": marks.get(what), "open_pattern": marks.get(f"{what}_pattern")}
    return {how: mark for how, mark in found.items() if mark is not None}


def call_in_marks(marked: str) -> Sequence[Call]:
    """The call in a text from mark to mark, or to the end of the answer. Raises ValueError or RecursionError."""
    return [call_of(json_of(marked.removeprefix(OPEN).removesuffix(CLOSE)))]


def json_of(text: str) -> Any:
    """A value of JSON. Raises ValueError, also for numbers that are none, or RecursionError."""
    return json.loads(text, parse_constant=_no_number)


def call_of(value: Any) -> Call:
    """A call of {"name": …, "arguments": {…}}; Llama 3 says "parameters". Raises ValueError for all else."""
    name = value.get("name") if isinstance(value, dict) else None
    if isinstance(name, str) and name:
        for each in ("arguments", "parameters"):
            if isinstance(value.get(each), dict):
                arguments = json.dumps(value[each], ensure_ascii=False, allow_nan=False)
                f"{name}{arguments}".encode()  # halves of surrogate pairs cannot be told
                return Call(name, arguments)
    raise ValueError("no call")


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)
