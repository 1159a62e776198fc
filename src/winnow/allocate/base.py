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
    """Base of allocators, which give every layer and head its number of slots. Subclasses are frozen dataclasses."""

    @property
    def takes_budget(self) -> bool:
        """True if it divides a budget. False for a rule of its own; plan.slots is then all that the prompt has."""
        return True

    @property
    def head_scores(self) -> HeadScores | None:
        """The head scores that it uses; None if it uses none, or those of a model that is not known yet."""
        return None

    def for_model(self, name: str, heads: tuple[int, ...]) -> Allocator:
        """The allocator for a particular model; most allocators are the same for every model.

        name: a directory, or a name on the Hugging Face hub; heads: KV heads of every compressed layer. Raises
        WinnowError if it does not fit the model, before any work is done.
        """
        return self

    @abstractmethod
    def layer_totals(self, plan: SlotPlan) -> list[int]:
        """Slots of every compressed layer, each within [heads·guaranteed, heads·length].

        They sum to plan.slots, unless rounding="paper" reproduces published code whose totals do not, or the allocator
        takes no budget.
        """

    @abstractmethod
    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        """Slots per head [H] int64 on the CPU, from the scores [H, N] of a layer, each in [plan.guaranteed, N].

        They sum to allocation.totals[layer], unless rounding="paper" reproduces published code whose slots do not.
        """


@dataclass(frozen=True)
class HeadAllocator(Allocator):
    """Base of allocators that divide the slots of a layer among its heads; another one divides those of the layers."""

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
