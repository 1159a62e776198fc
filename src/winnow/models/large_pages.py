"""Memory in large pages for weights that are made while loading."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor, nn

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

    def move(self, layer: nn.Module) -> None:
        """Moves a layer's own parameters there, each the same parameter."""
        if not hasattr(mmap, "MADV_HUGEPAGE"):
            return
        for each in layer.parameters(recurse=False):
            if each.numel():
                each.data = self._room_like(each).copy_(each.detach())

    def _room_like(self, parameter: Tensor) -> Tensor:
        """Memory of the same shape and dtype that begins with a cache line, and a storage of its own."""
        if self._region is None or self._used + parameter.nbytes > len(self._region):
            self._region, self._used = _in_large_pages(max(REGION, parameter.nbytes)), 0
        start = self._used
        self._used += -(-parameter.nbytes // LINE) * LINE
        room = torch.frombuffer(self._region, dtype=parameter.dtype, count=parameter.numel(), offset=start)
        return room.view(parameter.shape)


def _in_large_pages(size: int) -> mmap.mmap:
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # of a system without them
        region.madvise(mmap.MADV_HUGEPAGE)
    return region
