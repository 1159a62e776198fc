"""Slots of the heads of a block: those of KV head 0, then of head 1, ..."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class HasOffsets(Protocol):
    """Something that knows where heads begin."""

    @property
    def offsets(self) -> Tensor:
        """[H + 1] int64 on the CPU: head h owns slots offsets[h] to offsets[h + 1]."""


class HeadBounds:
    """First and last slots of heads, from their offsets."""

    @property
    def starts(self: HasOffsets) -> Tensor:
        """[H] int64: the first slot that head h reads."""
        return self.offsets[:-1]

    @property
    def stops(self: HasOffsets) -> Tensor:
        """[H] int64: one past the last slot of head h."""
        return self.offsets[1:]


def check_offsets(offsets: Tensor, slots: int) -> None:
    """Raise ValueError unless offsets [H + 1] are the bounds of heads that share `slots` slots."""
    if offsets.dtype != torch.int64 or offsets.device.type != "cpu" or offsets.ndim != 1 or not len(offsets):
        raise ValueError("prefix offsets must be an int64 CPU tensor [heads + 1]")
    if offsets[0] != 0 or offsets[-1] != slots or bool((offsets.diff() < 0).any()):
        raise ValueError(f"prefix offsets {offsets.tolist()} do not partition {slots} slots")
    if not offsets.is_contiguous():
        raise ValueError("prefix offsets must be contiguous")


def heads_of_slots(offsets: Tensor, slots: Tensor) -> Tensor:
    """[n] int64: the head that owns each of the slot indices [n]."""
    return torch.searchsorted(offsets.to(slots.device), slots, right=True) - 1
