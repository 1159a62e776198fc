"""RULER's common words extraction: ten words that stand in a numbered list ten times as often as the others."""

from __future__ import annotations

import random
from typing import NamedTuple

from winnow.tasks.example import Example
from winnow.tasks.haystack.drawing import Draw
from winnow.tasks.haystack.fitting import Pieces, Write
from winnow.tasks.ruler.templates import COMMON_WORDS
from winnow.tasks.ruler.words import all_words

COMMON = 10
LONG = 4096
"""Tokens from which on words are repeated as often as the paper says."""


class Repeats(NamedTuple):
    """Times that words stand in a list of so many different ones."""

    common: int
    others: int


def repeats(length: int) -> tuple[Repeats, Repeats, int]:
    """Repeats of the list and of the solved example before it, and the words of that, for a length of prompts."""
    return (Repeats(30, 3), Repeats(10, 3), 40) if length >= LONG else (Repeats(6, 1), Repeats(3, 1), 20)


def pieces() -> Pieces:
    """Different words, which are as many as there are at most."""
    return Pieces(COMMON + 1, 10.0, len(all_words()))


def common_words_example(draw: Draw) -> Write:
    """Examples of a draw, by the number of different words."""
    rng = draw.rng("words")
    often, shot_often, shot_size = repeats(draw.length)
    shot_words = rng.sample(all_words(), shot_size)
    shot = _prompt(_list(shot_words, shot_often, rng)) + _numbered(shot_words[:COMMON])
    words = rng.sample(all_words(), len(all_words()))

    def write(count: int) -> Example:
        numbered = _list(words[:count], often, draw.rng("order"))
        return Example(
            name=draw.name,
            context=f"{shot}\n{COMMON_WORDS.context.format(context=numbered)}",
            question=COMMON_WORDS.question,
            answers=tuple(words[:COMMON]),
            answer_prefix=COMMON_WORDS.answer_prefix,
            facts={"length": draw.length},
        )

    return write


def _prompt(numbered: str) -> str:
    return COMMON_WORDS.context.format(context=numbered) + COMMON_WORDS.question + COMMON_WORDS.answer_prefix


def _list(words: list[str], often: Repeats, rng: random.Random) -> str:
    """The first words as often as common ones, the others as others, in any order."""
    repeated = words[:COMMON] * often.common + words[COMMON:] * often.others
    rng.shuffle(repeated)
    return _numbered(repeated)


def _numbered(words: list[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))
