"""Parts of a weight that are there in another form one after another."""

from __future__ import annotations

from collections.abc import Iterator

_PART = 1 << 22
"""Weights of a part: 8 MB in bfloat16."""
_ALIGNED = 64
"""Outputs of which a part is a multiple, so that no block of packed weights is cut."""


def parts_of(outputs: int, inputs: int) -> Iterator[slice]:
    """Parts of the outputs of a weight [O, I]."""
    size = max(1, _PART // (inputs * _ALIGNED)) * _ALIGNED
    for start in range(0, outputs, size):
        yield slice(start, min(start + size, outputs))
