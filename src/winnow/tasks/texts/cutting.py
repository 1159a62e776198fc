"""Pieces of a text of so many tokens."""

from __future__ import annotations

from collections.abc import Callable

WORD = 60
"""Characters to look for the beginning of a word, at most; Chinese and Japanese have no blanks before words."""


def cut(text: str, start: int, tokens: int, count_tokens: Callable[[str], int]) -> int:
    """The end of a piece from `start` on, before a word, so that it has at most `tokens` tokens; the text's own end."""
    low, high = start, min(len(text), start + tokens)
    while count_tokens(text[start:high]) <= tokens:
        if high == len(text):
            return high
        low, high = high, min(len(text), start + 2 * (high - start))
    while high - low > 1:
        middle = (low + high) // 2
        if count_tokens(text[start:middle]) <= tokens:
            low = middle
        else:
            high = middle
    return _before_word(text, start, low)


def last_start(text: str, tokens: int, count_tokens: Callable[[str], int]) -> int | None:
    """The last place behind which there are at least `tokens` tokens; None if the text has fewer."""
    low, high = 0, min(len(text), tokens)
    while count_tokens(text[len(text) - high :]) < tokens:
        if high == len(text):
            return None
        low, high = high, min(len(text), 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        if count_tokens(text[len(text) - middle :]) < tokens:
            low = middle
        else:
            high = middle
    return len(text) - high


def word_after(text: str, place: int) -> int:
    """The beginning of the first word at or behind a place; the place itself where no word begins for long."""
    begins = (near for near in range(place, min(len(text), place + WORD) + 1) if near == 0 or text[near - 1].isspace())
    return next(begins, place)


def _before_word(text: str, start: int, end: int) -> int:
    """The blank before the word that `end` stands in, so that the next piece begins with it."""
    blanks = (place for place in range(end, max(start, end - WORD), -1) if text[place].isspace())
    place = next(blanks, end)
    while place > start + 1 and text[place - 1].isspace():
        place -= 1
    return place
