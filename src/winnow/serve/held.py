"""Conversations that were answered, kept so that their next question does not have all of them read again."""

from __future__ import annotations

from collections.abc import Hashable
from copy import deepcopy
from typing import NamedTuple

from winnow.cache.compressed import CompressedCache
from winnow.serve.latest import Latest


class Held(NamedTuple):
    """A conversation up to an answer."""

    text: str
    tokens: list[int]
    """Those of the text."""
    cache: CompressedCache
    """Holds the first of them, all but the last one perhaps. One row."""
    nbytes: int
    """Those of the cache, without what it shares with others from the beginning on."""


class HeldConversations:
    """The latest conversations, each with what it began with; the one that was not gone on with for longest goes first.

    Conversations are known by their text: a tokenizer may cut an answer into other tokens than the model said.
    """

    def __init__(self, most: int, most_bytes: int | None = None) -> None:
        """most: conversations that are kept; 0 for none. most_bytes: bytes of all, at most; None for any number."""
        self._latest: Latest[str, Held] = Latest(most, most_bytes)

    def __len__(self) -> int:
        return len(self._latest)

    @property
    def nbytes(self) -> int:
        """Bytes of all; those of a prefix that several share count for each."""
        return self._latest.nbytes

    def keep(self, kind: Hashable, conversation: Held) -> None:
        """Keeps a conversation, for those of its kind: what it began with, and how its text becomes tokens."""
        self._latest.keep(kind, conversation.text, conversation)

    def forget(self) -> None:
        """Lets go of all."""
        self._latest.forget()

    def longest(self, kind: Hashable, text: str) -> Held | None:
        """A fork of the longest conversation that a text goes on with; None where there is none."""
        found = self._latest.longest(kind, lambda known: _goes_on(text, known))
        return found and found._replace(tokens=list(found.tokens), cache=deepcopy(found.cache))


def _goes_on(text: str, known: str) -> bool:
    """True if a text goes on behind another, and not within a word, whose tokens would be others."""
    if not known or not text.startswith(known) or text == known:
        return False
    return not (known[-1].isalnum() and text[len(known)].isalnum())
