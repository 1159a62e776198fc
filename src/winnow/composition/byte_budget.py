"""Filling bytes: the largest selection whose packed form fits, where only trying tells how many bytes a size takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from winnow.select import Selection

_AIM, _FULL_ENOUGH = 0.998, 0.995
"""Shares of the bytes: what the next size is to take, and what is good enough."""
_ATTEMPTS = 24
"""Sizes to try: in proportion, as bytes are nearly a line; then, from the middle on, halving what is left."""


class Sizes(NamedTuple):
    """Slots to choose from."""

    least: int
    guess: int
    most: int
    there: int
    """Slots that a selection can have: once it has them all, nothing larger follows."""


def fill_bytes(
    limit: float, sizes: Sizes, choose: Callable[[int], Selection], size_of: Callable[[Selection], float]
) -> Selection | None:
    """Of the selections `choose(slots)`, one that takes at most `limit` bytes and close to that; None if none fits."""
    low, slots, high = sizes.least, sizes.guess, sizes.most + 1
    fitting: Selection | None = None
    for attempt in range(_ATTEMPTS):
        selection = choose(slots)
        size = size_of(selection)
        if size <= limit:
            fitting, low = selection, slots + 1
            if size >= _FULL_ENOUGH * limit or len(selection.positions) == sizes.there:
                break
        else:
            high = slots
        if low >= high:
            break
        guess = int(slots * _AIM * limit / size) if attempt < _ATTEMPTS // 2 else (low + high) // 2
        slots = min(max(guess, low), high - 1)
    return fitting
