"""Parameters that begin with a line of the cache."""

from __future__ import annotations

import mmap
from multiprocessing import parent_process

import torch
from torch import Tensor, nn

from winnow.models.devices import available_memory

LINE = 64
"""Bytes of a cache line. A row of a tile that begins within one is read from two."""


def begin_with_lines(model: nn.Module) -> None:
    """Moves parameters on the CPU that begin within a cache line to memory of their own, each the same parameter.

    In a safetensors file they begin wherever its header ends, and loading leaves them in the file's memory. All of them
    move, so that this memory is given back. None does in a worker process, which shares it with the others, or where
    there is no room.
    """
    within = [each for each in model.parameters() if _is_plain(each) and each.data_ptr() % LINE]
    free = available_memory(torch.device("cpu"))
    if parent_process() is not None or (free is not None and sum(each.nbytes for each in within) > free):
        return
    for each in within:
        each.data = _room_like(each).copy_(each.detach())


def _room_like(parameter: Tensor) -> Tensor:
    """Memory of the same shape and dtype, which begins with a page.

    In pages of the usual size: large ones, which torch may be told to ask for, take the system several times as long to
    find, and weights are read no faster.
    """
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.empty_like(parameter, memory_format=torch.contiguous_format)
    pages = mmap.mmap(-1, parameter.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=parameter.dtype).view(parameter.shape)


def _is_plain(parameter: nn.Parameter) -> bool:
    """True for tensors of torch's own on the CPU with something in them, as they alone are read by address."""
    return type(parameter) is nn.Parameter and parameter.device.type == "cpu" and parameter.numel() > 0
