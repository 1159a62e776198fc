"""PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling.

Cai et al. 2024, arXiv 2406.02069.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.allocate.base import Allocation, Allocator, SlotPlan
from winnow.allocate.rounding import ROUNDING, Rounding, check_rounding, round_exactly
from winnow.allocate.uniform import Uniform, even_layers
from winnow.parameters import check_number, meaning


def pyramid(budget: float, room: float, layers: int, beta: float) -> list[float]:
    """Slots per head outside the window, falling linearly from the first layer to the last.

    budget: b, their mean; room: N - w, the most a head can hold, at least b; layers: L ≥ 2; beta ≥ 1.
    """
    low = budget / beta  # lo = b/β
    high = 2 * budget - low  # hi = 2b - lo
    if high >= room:
        low, high = 2 * budget - room, room  # hi = N - w, lo = 2b - hi
    return [high - layer * (high - low) / (layers - 1) for layer in range(layers)]


def pyramid_as_published(budget: int, room: int, layers: int, beta: float) -> list[int]:
    """`pyramid` in whole numbers as in the authors' code, which floors b/β and the step between layers."""
    low = int(budget // beta)
    high = 2 * budget - low
    if high >= room:
        low, high = 2 * budget - room, room
    step = (high - low) // (layers - 1)
    return [high - layer * step for layer in range(layers)]


@dataclass(frozen=True)
class Pyramid(Allocator):
    """Gives early layers many slots and late layers few, with the same mean; the heads of a layer share evenly.

    If the schedule does not fit (a model with one layer), every layer gets the mean.

    rounding="paper": the authors' integer arithmetic. Totals then drift (the floored step leaves late layers
    more than planned, so their sum exceeds the budget), and prompts shorter than 2b get uniform layers.
    """

    beta: float = field(default=20, metadata=meaning("steepness, at least 1: the last layer gets 1/beta of the mean"))
    rounding: Rounding = field(default="exact", metadata=ROUNDING)

    def __post_init__(self) -> None:
        check_number(self, "beta", 1)
        check_rounding(self)

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        if self.rounding == "paper":
            return self._as_published(plan)
        if len(plan.heads) < 2:
            return even_layers(plan)
        heads = torch.tensor(plan.heads, device="cpu")
        mean = plan.slots / sum(plan.heads)
        room = plan.length - plan.guaranteed
        levels = pyramid(mean - plan.guaranteed, room, len(plan.heads), self.beta)
        shares = heads * (torch.tensor(levels, dtype=torch.float64, device="cpu") + plan.guaranteed)
        return round_exactly(shares, plan.slots, heads * plan.guaranteed, heads * plan.length, heads).tolist()

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        return Uniform(self.rounding).head_slots(scores, allocation, layer)

    def _as_published(self, plan: SlotPlan) -> list[int]:
        mean = plan.slots // sum(plan.heads)
        budget = mean - plan.guaranteed
        if len(plan.heads) < 2 or plan.length < 2 * budget:
            return [heads * mean for heads in plan.heads]
        levels = pyramid_as_published(budget, plan.length - plan.guaranteed, len(plan.heads), self.beta)
        return [
            heads * min(max(level + plan.guaranteed, plan.guaranteed), plan.length)
            for heads, level in zip(plan.heads, levels, strict=True)
        ]
