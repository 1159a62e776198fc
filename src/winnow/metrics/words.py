"""Words of a text, with their places."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

_STEM = re.compile(r"[^\W_]+")


class Word(NamedTuple):
    """A word without its case, and the part of the text [start, end) where it stands."""

    text: str
    start: int
    end: int


def words(text: str) -> list[Word]:
    """Letters, digits and the marks on them; all else divides words, except the sign of a number."""
    found: list[Word] = []
    while stem := _STEM.search(text, found[-1].end if found else 0):
        start, end = stem.span()
        while end < len(text) and _goes_on(text[end]):
            end += 1
        found.append(Word(text[start - _is_negative(text, start) : end].casefold(), start, end))
    return found


def _goes_on(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character).startswith("M")


def _is_negative(text: str, start: int) -> bool:
    """True for a number after a minus, which is no hyphen behind a word and no dash."""
    before = text[max(0, start - 2) : start]
    return before.endswith("-") and text[start].isdigit() and not re.match(r"[\w-]", before[:-1])
