"""Allocators that know a layer's slots only when they have seen all layers, and what they may say before."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.allocate.base import Allocation, Allocator, SlotPlan, layers_allocator
from winnow.allocate.rounding import LEAST_WEIGHT, round_exactly, water_fill
from winnow.allocate.uniform import Uniform, even_layers
from winnow.view import WindowAttention


class Claim(NamedTuple):
    """The stake of a layer in the competition for slots: all that is remembered of it for that."""

    weight: float = 1.0
    """Its share of what is given out by preference, in proportion to the other layers'."""
    scores: Tensor | None = None
    """[K] its best scores of all heads together, best first, where single slots compete."""
    places: Tensor | None = None
    """[K] int64, token·H + head of each of them; equal scores are in this order."""

    def first(self, count: int) -> Claim:
        """The claim to `count` slots at most."""
        if self.scores is None or self.places is None or len(self.scores) <= count:
            return self
        return self._replace(scores=self.scores[:count].clone(), places=self.places[:count].clone())


class SpanningAllocator(Allocator):
    """Divides slots among layers that are known one after another, each when its own prompt is through it.

    A layer's slots only become fewer while later layers are seen. So a cache can let go of the others at once, and what
    is left in the end is what all scores at once would have given.
    """

    @property
    def attention_rows(self) -> int:
        """Last queries of the prompt whose attention is a layer's claim; 0 where scores say enough."""
        return 0

    @abstractmethod
    def claim(self, scores: Tensor, attention: WindowAttention | None, plan: SlotPlan) -> Claim:
        """The claim of a layer with scores [H, N], whose last `attention_rows` queries attend as `attention` says."""

    @abstractmethod
    def totals(self, claims: Sequence[Claim], plan: SlotPlan) -> list[int]:
        """Slots of the first len(claims) layers, each within [heads·guaranteed, heads·length].

        Those of all layers sum to plan.slots. Before, no layer has fewer than it will have in the end, and together
        they have at most plan.slots and one for each.
        """

    def layer_totals(self, plan: SlotPlan) -> list[int]:
        """Slots that layers get where all claim alike: what is expected before any is seen."""
        return even_layers(plan)

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        return Uniform().head_slots(scores, allocation, layer)


class PreferenceAllocator(SpanningAllocator):
    """Gives layers slots in proportion to one number for each, on top of a minimum that all have."""

    def totals(self, claims: Sequence[Claim], plan: SlotPlan) -> list[int]:
        seen, least = len(claims), self.least(plan)
        heads, low = torch.tensor(plan.heads[:seen], device="cpu"), least[:seen]
        floor, high = heads * plan.guaranteed, heads * plan.length
        weights = torch.tensor([claim.weight for claim in claims], dtype=torch.float64, device="cpu") * heads
        if not float(weights.sum()) > 0:
            weights = heads.double()
        weights = weights.clamp(min=LEAST_WEIGHT * float(weights.max()))
        shares = low + (plan.slots - float(least.sum())) * weights / weights.sum()
        if seen == len(plan.heads):
            return round_exactly(shares, plan.slots, floor, high, weights).tolist()
        total = min(plan.slots - float(least[seen:].sum()), float(high.sum()))
        # Rounded up: rounding to a sum may give a layer its last slot only once others are there.
        real = water_fill(shares, total, floor, high, weights)
        return torch.minimum(real.floor().long() + 1, high).tolist()

    def least(self, plan: SlotPlan) -> Tensor:
        """[L] float64: slots of every layer whatever its preference, in [heads·guaranteed, heads·mean]."""
        return torch.tensor(plan.heads, dtype=torch.float64, device="cpu") * plan.guaranteed


def spanning_of(allocator: Allocator) -> SpanningAllocator | None:
    """The allocator of the layers, where it has to see them all."""
    found = layers_allocator(allocator)
    return found if isinstance(found, SpanningAllocator) else None
