"""Columns of tiles: powers of two, as many as a matrix product takes at least."""

from __future__ import annotations

NARROWEST = 16
"""Rows or columns of what a matrix product takes, at least."""


def tile_width(columns: int) -> int:
    """Columns of a tile that holds so many."""
    return max(NARROWEST, power(columns))


def power(number: int) -> int:
    """The next power of two."""
    return 1 << max(number - 1, 0).bit_length()
