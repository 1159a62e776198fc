"""Launch sizes of the kernels: queries and slots of a program, its warps and stages, by head size and dtype.

Chosen by what a program takes, compiled ahead of time (docs/results/gpu_resources.md): nothing spills, two programs of
a step of one token in 16 bits fit on a multiprocessor, and one fits where there are 99 KB of shared memory (8.6, 8.9,
12.0).
"""

from __future__ import annotations

from typing import NamedTuple

TILE_BYTES = 16384
"""Of a tile of queries, of keys and of values, at most."""
SMALLEST, LARGEST = 16, 64
"""Rows of a tile: what a matrix product takes at least, and what is enough."""
STAGES = 3
"""Tiles of keys and of values that are on their way at a time."""


class Sizes(NamedTuple):
    """The part of a launch that a program takes, and its means."""

    asked: int
    """Queries of a program."""
    blocks: int
    """Programs for all queries of a KV head."""
    slots: int
    """Slots that a program looks at together."""
    warps: int
    stages: int


def attending(wide: int, itemsize: int, queries: int) -> Sizes:
    """Sizes of `attend_chunks` for rows of `wide` numbers and so many queries of a KV head."""
    rows = min(max(TILE_BYTES // (wide * itemsize), SMALLEST), LARGEST)
    # Products of fp32 are taken number by number, which needs more registers than tensor cores do.
    asked = min(max(power(queries), SMALLEST), rows if itemsize == 2 else SMALLEST)
    # More queries mean more sums and logits than four warps hold.
    warps = 4 if asked == SMALLEST else 8
    return Sizes(asked, -(-queries // asked), rows, warps, STAGES)


def joining(queries: int) -> Sizes:
    """Sizes of `prepare_queries` and `join_chunks`, which look at no slots."""
    return Sizes(SMALLEST, -(-queries // SMALLEST), 0, 4, 1)


def tile_width(dim: int) -> int:
    """Columns of a tile that holds `dim`: a power of two, as many as a matrix product takes at least."""
    return max(SMALLEST, power(dim))


def power(number: int) -> int:
    """The next power of two."""
    return 1 << max(number - 1, 0).bit_length()
