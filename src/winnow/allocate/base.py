"""What an allocator promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor


class Plan(NamedTuple):
    """What is known about a sequence before its first layer is compressed."""

    slots: int
    """Slots to give out over all compressed layers and KV heads together."""
    heads: tuple[int, ...]
    """KV heads of every compressed layer."""
    length: int
    """N, prompt tokens of the sequence."""
    guaranteed: int
    """Slots that every head holds whatever the allocation (the scorer's window and sinks), at most N."""


class Allocator(ABC):
    """How many slots does each head get? Subclasses are frozen dataclasses."""

    @abstractmethod
    def layer_totals(self, plan: Plan) -> list[int]:
        """Slots of every compressed layer, each within [heads·guaranteed, heads·length].

        They sum to plan.slots, except where rounding="paper" reproduces published code that does not.
        """

    @abstractmethod
    def head_slots(self, scores: Tensor, total: int, guaranteed: int, layer: int) -> Tensor:
        """Slots per head [H] int64 on the CPU, from scores [H, N], each in [guaranteed, N].

        They sum to `total`, except where rounding="paper" reproduces published code that does not.
        """


class HeadAllocator(Allocator):
    """Divides the slots of a layer among its heads and leaves the layers to another allocator."""

    across: Allocator
    """Gives the layer totals."""

    def layer_totals(self, plan: Plan) -> list[int]:
        return self.across.layer_totals(plan)
