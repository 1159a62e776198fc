"""Tokens on trial: passes over a compressed prompt of which the last tokens may be wrong, and are taken back then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from winnow.cache.compressed import CompressedCache
from winnow.cache.hybrid import holds_state, is_of_rows
from winnow.cache.linear_states import KeptState, LinearStates
from winnow.models.kinds import starts_anew


class Trial:
    """Passes of a cache that are on trial, one at a time. After each, `end` tells how many of its tokens were wrong.

    Then the cache is as if the others had come one by one, also where it folds.
    """

    def __init__(self, cache: CompressedCache) -> None:
        self._cache = cache
        self._states = LinearStates(cache.layers)
        self._kept: list[KeptState] = []
        self._starts_anew = starts_anew(cache.config)

    @property
    def reads_again(self) -> bool:
        """True where right tokens have to be read again if others were wrong: linear states keep no tokens."""
        return bool(self._states)

    def room(self) -> int:
        """Tokens that a pass may have: those before a fold; none where a layer cannot take tokens back."""
        cache = self._cache
        layers, windows = cache.compressed_layers(), cache.sliding_layers()
        if not layers or self._starts_anew:
            return 0
        if not all(is_of_rows(each) or each in windows for each in filter(holds_state, cache.layers)):
            return 0
        if any(window.ring is None for window in windows) or not cache.windows_hide_nothing():
            return 0
        every, tail = cache.compression.fold_every, layers[0].tail
        if every is None or tail is None:
            return sys.maxsize
        # A fold that is due comes before the next token.
        return every if tail.longest >= every else every - tail.longest

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A context manager for a pass of no more tokens than there is room for."""
        self._kept = self._states.mark(self._kept)
        compression = self._cache.compression
        compression.on_trial = True
        try:
            yield
        finally:
            compression.on_trial = False

    def end(self, tokens: int, wrong: int) -> int:
        """Takes back the last `wrong` tokens of a pass of so many; how many of its first tokens are to be read again.

        Raises CacheError where the pass was broken off.
        """
        if wrong and self._states:
            self._cache.end_trial(tokens)
            self._states.take_back(self._kept)
            return tokens - wrong
        self._cache.end_trial(wrong)
        return 0
