"""Texts to hide needles in: sentences, cut to a length, with the needle between two of them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from typing import Protocol

from winnow.estimate.errors import NeedleError
from winnow.tasks.document import FactCounts, add_filler, write_story
from winnow.tasks.haystack.prose import write_prose
from winnow.tasks.haystack.splitting import sentences_before, split_sentences
from winnow.tasks.prompts import to_text


class Haystack(Protocol):
    """A text in which nothing answers the questions."""

    def sentences(self, words: int, avoid: frozenset[str]) -> Sequence[str]:
        """Sentences of so many words, in order, none of which holds a word of `avoid`; fewer where there are no more.

        Asking for fewer words gives the beginning of the same text. Punctuation marks are words.
        """


class ProseHaystack:
    """Generated English prose of any length; the beginning is the same whatever the length."""

    def __init__(self, seed: int) -> None:
        """seed: chooses the text."""
        self.seed = seed

    def sentences(self, words: int, avoid: frozenset[str]) -> Sequence[str]:
        """So many words, and the rest of a sentence."""
        return _enough(write_prose(self.seed), words, avoid)


class TaskHaystack:
    """Statements and filler of `winnow.tasks`, which is all that the bundled model can read."""

    def __init__(self, seed: int) -> None:
        """seed: chooses the text."""
        self.seed = seed

    def sentences(self, words: int, avoid: frozenset[str]) -> Sequence[str]:
        """Stories of a size that their facts allow without two of them about the same thing."""
        return _enough(self._stories(), words, avoid)

    def _stories(self) -> Iterator[str]:
        rng = random.Random(f"needle-haystack-{self.seed}")
        while True:
            story = write_story(rng, _COUNTS, _STORY)
            yield from (to_text(sentence) for sentence in add_filler(rng, story, _STORY))


# What `generate_document` writes into the 2,048 tokens of the bundled model.
_STORY = 2004
_COUNTS = FactCounts(secrets=4, pairs=12, attributes=2, chains=4)


class TextHaystack:
    """A user's text; `repeat` lets it start over where it is too short."""

    def __init__(self, text: str, name: str, repeat: bool = False) -> None:
        """name: what errors call it. Raises NeedleError for a text without sentences."""
        self.name = name
        self._sentences = split_sentences(text)
        self._repeat = repeat
        if not self._sentences:
            raise NeedleError(f"{name} has no sentences to hide a needle between.")

    def sentences(self, words: int, avoid: frozenset[str]) -> Sequence[str]:
        """The text as it is: a user chose text and needles, so `avoid` is not looked for."""
        return _enough(cycle(self._sentences) if self._repeat else self._sentences, words, frozenset())


def insertion_point(sentences: Sequence[str], depth: float) -> int:
    """The number of sentences before a needle at a depth between 0 (the start) and 1 (the end).

    The last boundary of sentences that is not beyond that share of the characters, as in the published script.
    """
    if not 0 <= depth <= 1:
        raise NeedleError(f"A depth must be between 0 (the start) and 1 (the end), not {depth!r}.")
    return sentences_before(sentences, depth)


def with_needle(sentences: Sequence[str], needle: str, before: int) -> tuple[str, int]:
    """The text with the needle after so many sentences, and the character where the needle starts."""
    start = " ".join([*sentences[:before], ""])
    return start + " ".join([needle, *sentences[before:]]), len(start)


def _enough(source: Iterable[str], words: int, avoid: frozenset[str]) -> list[str]:
    """From the start of the source until there are so many words, or to its end."""
    found: list[str] = []
    size = 0
    if words > 0:
        for sentence in source:
            if not avoid.isdisjoint(re.findall(r"\w+", sentence.lower())):
                continue
            found.append(sentence)
            size += count_words(sentence)
            if size >= words:
                break
    return found


def count_words(text: str) -> int:
    """Words and punctuation marks, of which a tokenizer makes a token each or more."""
    return len(re.findall(r"\w+|[^\w\s]", text))
