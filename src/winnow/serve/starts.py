"""Starts that several prompts have in common, held dense: the next such prompt is read from there on."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from winnow.cache.compressed import CompressedCache
from winnow.serve.latest import Latest

WORTH = 128
"""Tokens from which a start is held: a fork of fewer takes about as long as reading them."""
_REMEMBERED = 32
"""Prompts with which new ones are compared."""


class Start(NamedTuple):
    """The first tokens of several prompts."""

    tokens: tuple[int, ...]
    cache: CompressedCache
    """Holds them, and compresses nothing before it is told where a prompt ends. One row."""
    nbytes: int

    def fork(self, length: int) -> CompressedCache:
        """A cache of its own that waits for the rest of a prompt of so many tokens."""
        return self.cache.extended(length)


class SharedStarts:
    """The latest starts; the one that no prompt had for longest goes first.

    A start is known once two prompts of a kind have it: one that was read lately or waits, and one that is about to be
    read, which leaves it behind.
    """

    def __init__(self, most: int, most_bytes: int | None) -> None:
        """most: starts that are held; 0 for none. most_bytes: bytes of all, at most; None for any number."""
        self._latest: Latest[tuple[int, ...], Start] = Latest(most, most_bytes)
        self._lately: deque[tuple[Hashable, array[int]]] = deque(maxlen=_REMEMBERED)

    def __len__(self) -> int:
        return len(self._latest)

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self._latest.nbytes

    def begin(
        self, kind: Hashable, tokens: Sequence[int], waiting: Sequence[Sequence[int]], nbytes: Callable[[int], int]
    ) -> tuple[Start | None, int]:
        """The longest start that a prompt has, and the length of a longer one that it is to leave behind.

        None, and 0, where there is none. The prompt is remembered from now on.

        Args:
            kind: prompts of one kind may have starts in common.
            waiting: other prompts of this kind that will be read.
            nbytes: bytes that a start of so many tokens takes.
        """
        if not self._latest.fits(0):
            return None, 0
        start = self._latest.longest(kind, lambda known: _goes_on(tokens, known))
        shared = self._shared(kind, tokens, waiting)
        is_new = shared - (0 if start is None else len(start.tokens)) >= WORTH
        return start, shared if is_new and self._latest.fits(nbytes(shared)) else 0

    def keep(self, kind: Hashable, start: Start) -> None:
        """Holds a start from now on."""
        self._latest.keep(kind, start.tokens, start)

    def forget(self) -> None:
        """Lets go of all."""
        self._latest.forget()

    def _shared(self, kind: Hashable, tokens: Sequence[int], waiting: Sequence[Sequence[int]]) -> int:
        """Tokens that a prompt begins with like another one of its kind."""
        own = array("q", tokens)
        others = [each for its, each in self._lately if its == kind] + [array("q", each) for each in waiting]
        self._lately.append((kind, own))
        # One token is left, whose logits begin the answer.
        alike = [min(_common(own, each), len(own) - 1) for each in others]
        most = max(alike, default=0)
        # By chance, what follows a start may go on alike in some prompts: others would not go on behind that.
        return min((each for each in alike if each > most - WORTH), default=0)


def _common(tokens: array[int], others: array[int]) -> int:
    """Tokens that two texts begin with."""
    # By halves: Python compares slices much faster than it takes a step.
    least, most = 0, min(len(tokens), len(others))
    while least < most:
        middle = (least + most + 1) // 2
        if tokens[least:middle] == others[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def _goes_on(tokens: Sequence[int], start: tuple[int, ...]) -> bool:
    return len(tokens) > len(start) and tuple(tokens[: len(start)]) == start
