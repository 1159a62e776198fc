"""RULER's frequent words extraction: made-up words whose frequencies fall off as Zipf's law says."""

from __future__ import annotations

import math
import random
from string import ascii_lowercase

from winnow.tasks.example import Example
from winnow.tasks.haystack.drawing import Draw
from winnow.tasks.haystack.fitting import Pieces, Write
from winnow.tasks.ruler.templates import FREQUENT_WORDS

LETTERS = 6
DOTS = "..."
"""Noise in the place of the most frequent word."""
ASKED = 3
ZETA = math.pi**2 / 6
"""The sum of all 1 / rank², for an exponent of 2."""
TOKENS_PER_WORD = 50
"""The vocabulary has a word for so many tokens of the length."""

# With fewer words, the third place would be shared.
PIECES = Pieces(80, 3.0)


def counts(words: int, vocabulary: int) -> list[int]:
    """Times of each rank in a text of about so many words, rounded down."""
    return [int(words / rank**2 / ZETA) for rank in range(1, vocabulary + 1)]


def frequent_words_example(draw: Draw) -> Write:
    """Examples of a draw, by the number of words before rounding."""
    size = max(draw.length // TOKENS_PER_WORD, 1 + ASKED)
    vocabulary = [DOTS, *_made_up(size - 1, draw.rng("words"))]

    def write(count: int) -> Example:
        words = [word for word, times in zip(vocabulary, counts(count, size), strict=True) for _ in range(times)]
        draw.rng("order").shuffle(words)
        return Example(
            name=draw.name,
            context=FREQUENT_WORDS.context.format(context=" ".join(words)),
            question=FREQUENT_WORDS.question,
            answers=tuple(vocabulary[1 : 1 + ASKED]),
            answer_prefix=FREQUENT_WORDS.answer_prefix,
            facts={"length": draw.length},
        )

    return write


def _made_up(count: int, rng: random.Random) -> list[str]:
    """Different words of random letters."""
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(rng.choices(ascii_lowercase, k=LETTERS))] = None
    return list(words)
