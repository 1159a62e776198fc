"""Products with weights that are stored in few bits and written out for many rows, a part of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

_PART = 1 << 22
"""Weights that are written out at a time: 8 MB in bfloat16."""
_ALIGNED = 64
"""Outputs of which a part is a multiple, so that no block of packed weights is cut."""


class WrittenOut(Protocol):
    """Weights [o, I] of some outputs, in a dtype; a whole number of blocks."""

    def __call__(self, part: slice, dtype: torch.dtype) -> Tensor: ...


def parts_of(shape: torch.Size) -> Iterator[slice]:
    """Parts of the outputs of a weight [O, I]."""
    outputs, inputs = shape
    size = max(1, _PART // (inputs * _ALIGNED)) * _ALIGNED
    for start in range(0, outputs, size):
        yield slice(start, min(start + size, outputs))


def times(rows: Tensor, shape: torch.Size, written_out: WrittenOut) -> Tensor:
    """rows [N, I] times the weight of a shape [O, I] -> [N, O]"""
    outputs = rows.new_empty(len(rows), shape[0])
    for part in parts_of(shape):
        outputs[:, part] = rows @ written_out(part, rows.dtype).mT
    return outputs
