"""The contract of an allocator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from winnow.heads import HeadScores


class SlotPlan(NamedTuple):
    """Facts about a sequence before its first layer is compressed."""

    slots: int
    """Slots to give out over all compressed layers and KV heads together."""
    heads: tuple[int, ...]
    """KV heads of every compressed layer."""
    length: int
    """N, prompt tokens of the sequence."""
    guaranteed: int
    """Slots that every head holds whatever the allocation (the scorer's window and sinks), at most N."""


class Allocation(NamedTuple):
    """The slots of a sequence, divided among its layers."""

    plan: SlotPlan
    totals: tuple[int, ...]
    """Slots of every compressed layer."""
    bytes: tuple[float, ...] | None = None
    """Bytes that every layer may take, where the budget is in bytes."""
    upkeep: int = 0
    """Bytes that a kept slot takes besides what its store writes."""


class Allocator(ABC):
    """The number of slots of each layer and head. Subclasses are frozen dataclasses."""

    @property
    def takes_budget(self) -> bool:
        """Most divide a budget. Where a rule of its own says what stays, plan.slots is all that the prompt has."""
        return True

    @property
    def head_scores(self) -> HeadScores | None:
        """The table that budgets follow; None where they follow none, or that of a model which is not known yet."""
        return None

    def for_model(self, name: str, heads: tuple[int, ...]) -> Allocator:
        """The allocator with what it knows of a model; most serve any as they are.

        name: a directory, or a name on the Hugging Face hub; heads: KV heads of every compressed layer. Raises
        WinnowError where it cannot serve the model, before any work is done.
        """
        return self

    @abstractmethod
    def layer_totals(self, plan: SlotPlan) -> list[int]:
        """Slots of every compressed layer, each within [heads·guaranteed, heads·length].

        They sum to plan.slots, except where rounding="paper" reproduces published code that does not, and where the
        allocator takes no budget.
        """

    @abstractmethod
    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        """Slots per head [H] int64 on the CPU, from the scores [H, N] of a layer, each in [plan.guaranteed, N].

        They sum to allocation.totals[layer], except where rounding="paper" reproduces published code that does not.
        """


@dataclass(frozen=True)
class HeadAllocator(Allocator):
    """Divides the slots of a layer among its heads and leaves the layers to another allocator."""

    across: Allocator = field(kw_only=True)
    """Gives the layer totals."""

    @property
    def takes_budget(self) -> bool:
        return self.across.takes_budget

    @property
    def head_scores(self) -> HeadScores | None:
        return self.across.head_scores

    def for_model(self, name: str, heads: tuple[int, ...]) -> Allocator:
        return replace(self, across=self.across.for_model(name, heads))

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        return self.across.layer_totals(plan)


def layers_allocator(allocator: Allocator) -> Allocator:
    """The allocator that divides the budget among the layers, whatever divides a layer among its heads."""
    while isinstance(allocator, HeadAllocator):
        allocator = allocator.across
    return allocator
