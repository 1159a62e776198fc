"""Parts of a weight that are there in another form one after another."""

from __future__ import annotations

from collections.abc import Iterator

MULTIPLIED = 1 << 22
"""Weights of a part that rows are multiplied by: 8 MB in bfloat16."""
PASSING = 1 << 18
"""Weights of a part that one thing after another is done to: 1 MB in float32, so that they stay in a cache."""
_ALIGNED = 64
"""Outputs of which a part is a multiple, so that no block of packed weights is cut."""


def parts_of(outputs: int, inputs: int, most: int | None = None) -> Iterator[slice]:
    """Parts of the outputs of a weight [O, I]. most: weights of a part, if given; one has 64 outputs in any case."""
    size = max(1, (most or MULTIPLIED) // (inputs * _ALIGNED)) * _ALIGNED
    for start in range(0, outputs, size):
        yield slice(start, min(start + size, outputs))
