"""Memory in large pages for weights that are made while loading."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from winnow.models.lines import LINE

REGION = 64 << 20
"""Bytes that are asked for at a time: of large pages, those at the ends of a region are lost."""


class LargePages:
    """Room in large pages, a region after another.

    A large page is 512 of the usual size. Of those a processor remembers the places of a few thousand: weights that are
    read once for every token have more, and their places are looked up in memory before they are. Where the system has
    no large pages the room is of usual ones.
    """

    def __init__(self) -> None:
        self._region: mmap.mmap | None = None
        self._used = 0

    def room(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory for a tensor: it begins with a cache line, and is a storage of its own."""
        size = math.prod(shape) * dtype.itemsize
        if not size or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(*shape, dtype=dtype, device="cpu")
        if self._region is None or self._used + size > len(self._region):
            self._region, self._used = _in_large_pages(max(REGION, size)), 0
        start = self._used
        self._used += -(-size // LINE) * LINE
        return torch.frombuffer(self._region, dtype=dtype, count=math.prod(shape), offset=start).view(*shape)


def _in_large_pages(size: int) -> mmap.mmap:
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # of a system without them
        region.madvise(mmap.MADV_HUGEPAGE)
    return region
