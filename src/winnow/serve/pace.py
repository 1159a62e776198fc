"""Lengths of the pieces in which a prompt is read while others are answered, by the seconds that they take."""

from __future__ import annotations

_STEP = 16
"""Lengths are multiples of it, as kernels take so many tokens at a time."""
_ROOM = 0.9
"""Share of the longest time below which a longer piece is tried."""
_TICK = 1e-9
"""Seconds of a piece that took none by the clock."""


class Pace:
    """The length of the next piece, learned from the one before it: of the same prompt, or else of the last one.

    A token costs the more, the more tokens it attends to, so the piece right before tells best. Every piece reads all
    weights, so its time grows less than its length: a longer one has always as much room as the times promise.
    """

    def __init__(self, longest: float, least: int) -> None:
        """A pace that begins with the least pieces.

        longest: seconds that a piece may take. least: tokens of a piece, however long they take.
        """
        self._longest = longest
        self._least = least
        self.tokens = least
        """Tokens of the next piece."""

    def took(self, tokens: int, seconds: float) -> None:
        """Learns from a piece. One that was cut short tells nothing: most of its time, weights were read."""
        if tokens < self.tokens:
            return
        # Twice or half as many at most: a single piece may have been slow, or quick, for reasons of its own.
        fits = tokens * min(2.0, max(0.5, self._longest / max(seconds, _TICK)))
        if seconds < _ROOM * self._longest:
            # Where reading the weights takes most of the time, the times promise less than there is.
            fits = max(fits, tokens + _STEP)
        self.tokens = max(self._least, int(fits) // _STEP * _STEP)
