"""The same number of slots for every head of every layer: what most methods assume."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.allocate.base import Allocation, Allocator, SlotPlan
from winnow.allocate.rounding import ROUNDING, Rounding, check_rounding, check_total, full_tensor, round_exactly


def even_layers(plan: SlotPlan) -> list[int]:
    """Layer totals with the same mean per head, summing to plan.slots."""
    heads = torch.tensor(plan.heads, device="cpu")
    shares = heads.double() * plan.slots / sum(plan.heads)
    return round_exactly(shares, plan.slots, heads * plan.guaranteed, heads * plan.length, heads).tolist()


def even_heads(heads: int, length: int, total: int, guaranteed: int) -> Tensor:
    """Slots per head [H] that differ by at most one and sum to `total`; lower heads get what is left over."""
    check_total(total, heads * guaranteed, heads * length)
    mean, left = divmod(total, heads)
    slots = full_tensor(heads, mean)
    slots[:left] += 1
    return slots


@dataclass(frozen=True)
class Uniform(Allocator):
    """Gives every head the mean; leftover slots go, one each, to the lower layers and heads.

    rounding="paper": every head gets the mean rounded down, and the leftover is lost, as in published code, which has
    one capacity for all heads.
    """

    rounding: Rounding = field(default="exact", metadata=ROUNDING)

    def __post_init__(self) -> None:
        check_rounding(self)

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        if self.rounding == "exact":
            return even_layers(plan)
        mean = plan.slots // sum(plan.heads)
        return [heads * mean for heads in plan.heads]

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        heads, length = scores.shape
        total, guaranteed = allocation.totals[layer], allocation.plan.guaranteed
        if self.rounding == "exact":
            return even_heads(heads, length, total, guaranteed)
        return full_tensor(heads, total // heads).clamp(guaranteed, length)
