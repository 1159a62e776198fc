"""Slots of the heads of a block: those of KV head 0, then of head 1, ..."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from winnow.kernels.formats.schema import Demand, Rule

CPU = torch.device("cpu")


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


def offsets_rule(offsets: Tensor, slots: int) -> Rule:
    """Offsets [H + 1] are the bounds of heads that share `slots` slots."""
    partition = Demand(f"must partition {slots} slots", lambda found: _partition(found, slots))
    return Rule("prefix offsets", offsets, torch.int64, (None,), CPU, (partition,))


def _partition(offsets: Tensor, slots: int) -> bool:
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != slots:
        return False
    return not bool((offsets.diff() < 0).any())


def heads_of_slots(offsets: Tensor, slots: Tensor) -> Tensor:
    """[n] int64: the head that owns each of the slot indices [n]."""
    return torch.searchsorted(offsets.to(slots.device), slots, right=True) - 1
