"""Tokens on trial: passes over a compressed prompt of which the last tokens may be wrong, and are taken back then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from winnow.cache.compressed import CompressedCache
from winnow.cache.linear_states import KeptState, LinearStates
from winnow.cache.state_calls import StateCalls
from winnow.models.kinds import starts_anew


class Trial:
    """Passes of a cache that are on trial, one at a time. After each, `end` tells how many of its tokens were wrong.

    Then the cache is as if the others had come one by one, also where it folds.
    """

    def __init__(self, cache: CompressedCache) -> None:
        self._cache = cache
        self._windows = cache.sliding_layers()
        self._states = LinearStates(cache.layers)
        self._kept: list[KeptState] = []
        self._reads_again = bool(self._states)
        self._is_possible = not starts_anew(cache.config) and cache.holds_rows_alone()

    @property
    def reads_again(self) -> bool:
        """True where right tokens have to be read again if others are wrong, as far as the latest pass tells.

        Linear states keep no tokens, but a graph's memory keeps what tokens bring to them.
        """
        return self._reads_again

    def room(self) -> int:
        """Tokens that a pass may have: those before a fold; none where a layer cannot take tokens back."""
        if not self._is_possible or any(window.ring is None for window in self._windows):
            return 0
        every = self._cache.compression.fold_every
        if every is None:
            return sys.maxsize
        # A fold that is due comes before the next token.
        held = self._cache.dense_tokens()
        return every if held >= every else every - held

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A context manager for a pass of no more tokens than there is room for."""
        self._kept = self._states.mark(self._kept)
        compression = self._cache.compression
        try:
            compression.on_trial, compression.state_calls = True, None
            yield
        finally:
            compression.on_trial = False
            self._reads_again = bool(self._states) and compression.state_calls is None

    def end(self, tokens: int, wrong: int) -> int:
        """Takes back the last `wrong` tokens of a pass of so many; how many of its first tokens are to be read again.

        Raises CacheError where the pass was broken off.
        """
        compression, right = self._cache.compression, tokens - wrong
        compression.on_trial = False  # also where an interrupt came right behind the pass
        calls, compression.state_calls = compression.state_calls, None  # not to keep a graph's memory alive
        if not wrong or not self._states:
            self._cache.end_trial(wrong)
            return 0
        self._cache.end_trial(tokens if calls is None else wrong, partial(self._put_back, calls, right))
        return right if calls is None else 0

    def _put_back(self, calls: StateCalls | None, right: int) -> None:
        """Has linear states be as before the pass, or behind its first tokens that are `right`, where calls tell."""
        self._states.take_back(self._kept)
        if calls is not None:
            calls.take(right)
