"""Allocators that know every head's slots before they see a prompt."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache

from torch import Tensor

from winnow.allocate.base import Allocation, Allocator, SlotPlan


class PlannedAllocator(Allocator):
    """Gives every head its slots by what is known of the model, whatever a prompt says."""

    @abstractmethod
    def slots(self, plan: SlotPlan) -> Tensor:
        """Slots of every head [L, H] int64, each in [plan.guaranteed, plan.length].

        Raises MethodError where what is known is not of such a model.
        """

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        totals: list[int] = _slots(self, plan).sum(dim=1).tolist()
        return totals

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        return _slots(self, allocation.plan)[layer]


@lru_cache(maxsize=64)
def _slots(allocator: PlannedAllocator, plan: SlotPlan) -> Tensor:
    """Every layer of a prompt asks for the same, hence the cache."""
    return allocator.slots(plan)
