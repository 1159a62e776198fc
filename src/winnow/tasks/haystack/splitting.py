"""Texts as sentences, and places between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate


def split_sentences(text: str) -> list[str]:
    """At full stops, question and exclamation marks before a blank, and at empty lines; blanks become single.

    Marks of Chinese and Japanese need no blank.
    """
    pieces = re.split(r"(?<=[。！？])|(?<=[.!?])\s+|(?<=[.!?][\"'”’)\]])\s+|\n\s*\n", text)
    return [" ".join(piece.split()) for piece in pieces if piece.split()]


def sentences_before(sentences: Sequence[str], share: float) -> int:
    """The number of sentences before the last boundary that is not beyond a share of the characters, 0 to 1."""
    ends = list(accumulate(len(sentence) + 1 for sentence in sentences))
    whole = ends[-1] if ends else 0
    # A boundary exactly at the depth counts, whatever the rounding of the product.
    return sum(end <= share * whole + 1e-6 for end in ends)
