"""One set of tokens for heads that share a latent per token (multi-head latent attention).

ApertureKV (Table 9, App. G.3) selects for every head of such a model by itself. What is cached there is one latent for
all heads, so a token frees memory only when no head keeps it: under a budget the heads have to agree on one set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from winnow.allocate.base import Allocation, Allocator, HeadAllocator
from winnow.allocate.uniform import Uniform
from winnow.parameters import check_choice, meaning
from winnow.transfers import sent

Need = Literal["sum", "max", "rank"]


@dataclass(frozen=True)
class HeadUnion(HeadAllocator):
    """Keeps the tokens of a layer that its heads need most together, where heads share one latent per token.

    Scorer and allocator work as if every head had slots of its own: head h gets s_h slots beyond the guaranteed ones.
    m_h,t are its scores minus the lowest one, divided by their sum. A layer with b slots first keeps what every head is
    guaranteed, then the tokens with the largest need:

    - by="sum": Σ_h s_h·m_h,t, what all heads together lose without the token.
    - by="max": max_h s_h·m_h,t, what the head that needs the token most loses.
    - by="rank": max_h s_h/(1 + r_h,t), r being the token's rank in its head, from 0: a union of every head's best
      tokens, in proportion to s_h, of b tokens in all.

    `across` allocates to the heads.
    """

    by: Need = field(default="sum", metadata=meaning("combines the heads' needs of a token: sum, max, or rank"))
    across: Allocator = field(default_factory=Uniform, kw_only=True)

    def __post_init__(self) -> None:
        check_choice(self, "by", ("sum", "max", "rank"))

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        return self.across.head_slots(scores, allocation, layer)

    def need(self, order: Tensor, slots: Tensor) -> Tensor:
        """Need of the heads of a layer for each token [N] fp64, +inf where all of them are guaranteed it.

        order: [H, N] scores as they are when every head knows its slots; +inf in some heads only is their best score.
        slots: [H] int64, of every head beyond the guaranteed ones; where there are none, heads weigh the same.
        """
        weights = sent(slots.double(), order.device)[:, None]
        weights = weights if bool(weights.any()) else torch.ones_like(weights)
        if self.by == "rank":
            need = (weights / (1 + _ranks(order))).amax(dim=0)
        else:
            masses = weights * _masses(order)
            need = masses.sum(dim=0) if self.by == "sum" else masses.amax(dim=0)
        return need.masked_fill((order == torch.inf).all(dim=0), torch.inf)


def union_of(allocator: Allocator) -> HeadUnion:
    """The rule by which heads agree on one set: the allocator's own, or the default one over it."""
    return allocator if isinstance(allocator, HeadUnion) else HeadUnion(across=allocator)


def of_sharing_heads(allocation: Allocation, heads: int) -> Allocation:
    """The allocation as if each of a layer's heads that share slots had them for itself."""
    plan = allocation.plan
    plan = plan._replace(slots=plan.slots * heads, heads=tuple(count * heads for count in plan.heads))
    return allocation._replace(plan=plan, totals=tuple(total * heads for total in allocation.totals))


def _ranks(order: Tensor) -> Tensor:
    """[H, N] fp64: how many tokens a head ranks before each, those that all are guaranteed aside; ties by index."""
    apart = (order == torch.inf).all(dim=0)
    places = order.masked_fill(apart, -torch.inf).argsort(dim=1, descending=True, stable=True)
    ranks = torch.empty_like(places)
    return ranks.scatter_(1, places, torch.arange(order.shape[1], device=order.device).expand_as(places)).double()


def _masses(order: Tensor) -> Tensor:
    """[H, N] fp64: scores of every head from its lowest on, divided by their sum; +inf counts as its best one."""
    scores = order.double()
    finite = scores.isfinite()
    low = scores.masked_fill(~finite, torch.inf).amin(dim=1, keepdim=True)
    above = (scores - low).masked_fill(~finite, 0)
    best = above.amax(dim=1, keepdim=True)
    above = torch.where(scores == torch.inf, torch.where(best > 0, best, 1.0), above)
    apart = (order == torch.inf).all(dim=0)
    above = above.masked_fill(apart, 0)
    return above / above.sum(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
