"""Columns of tiles: powers of two, as many as a matrix product takes at least."""

from __future__ import annotations

import triton

NARROWEST = 16
"""Rows or columns of what a matrix product takes, at least."""


def tile_width(columns: int) -> int:
    """Columns of a tile that holds so many."""
    return max(NARROWEST, power_of_two(columns))


def power_of_two(columns: int) -> int:
    """The next power of two."""
    return int(triton.next_power_of_2(columns))
