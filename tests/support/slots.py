"""Slots of every head, through the interface that a cache uses."""

from __future__ import annotations

import torch

from winnow.allocate import Allocation, SlotPlan, TableAllocator


def slots_of(allocator: TableAllocator, plan: SlotPlan) -> list[list[int]]:
    """[L][H], through the interface that the cache uses."""
    totals = allocator.layer_totals(plan)
    per_layer = []
    for layer, heads in enumerate(plan.heads):
        scores = torch.zeros(heads, plan.length)
        slots = allocator.head_slots(scores, Allocation(plan, tuple(totals)), layer)
        assert slots.dtype == torch.int64
        assert int(slots.sum()) == totals[layer]
        per_layer.append(slots.tolist())
    return per_layer
