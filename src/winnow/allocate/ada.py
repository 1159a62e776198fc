"""Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation (Feng et al. 2024, arXiv 2407.11550)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.allocate.base import Allocation, Allocator, HeadAllocator
from winnow.allocate.rounding import ROUNDING, Rounding, check_rounding, full_tensor, round_exactly
from winnow.allocate.uniform import Uniform
from winnow.parameters import check_number, meaning
from winnow.select import kth_largest


def winners_per_head(scores: Tensor, total: int) -> Tensor:
    """Each head's share of the `total` best of all heads' scores together: [H, N] -> [H] int64, CPU.

    Equal scores go to the lower token index first, then to the lower head index.
    """
    heads = scores.shape[0]
    if total <= 0:
        return full_tensor(heads, 0)
    threshold = kth_largest(scores.flatten(), total)
    above = (scores > threshold).sum(dim=1)
    tied = scores == threshold
    above, equal = torch.stack([above, tied.sum(dim=1)]).cpu()  # all that the host has to know, at once
    wanted = total - int(above.sum())
    if int(equal.sum()) == wanted:
        return above + equal
    token_first = tied.t().flatten()
    taken = (token_first & (token_first.cumsum(dim=0) <= wanted)).view(-1, heads).sum(dim=0)
    return above + taken.cpu()


@dataclass(frozen=True)
class Ada(HeadAllocator):
    """Lets the heads of a layer compete for its slots; each gets a floor, a share of the mean.

    `across` gives the layer totals: Ada(across=Pyramid()) is Ada-PyramidKV.

    rounding="paper": b and f·b are rounded down, and every head's share is rounded by itself (half to even), so
    a layer may hold a few slots more or fewer than its total. `across` has its own rounding.
    """

    floor: float = field(
        default=0.2, metadata=meaning("share of the mean budget that every head gets before the competition")
    )
    rounding: Rounding = field(default="exact", metadata=ROUNDING)
    across: Allocator = field(default_factory=Uniform, kw_only=True)

    def __post_init__(self) -> None:
        check_number(self, "floor", 0, 1)
        check_rounding(self)

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        heads, length = scores.shape
        total, guaranteed = allocation.totals[layer], allocation.plan.guaranteed
        if self.rounding == "paper":
            return self._as_published(scores, total, guaranteed)
        won = winners_per_head(scores, total) - guaranteed
        mean = total / heads - guaranteed
        shares = guaranteed + (1 - self.floor) * won.double() + self.floor * mean  # (1 - f)·n_h + f·b
        return round_exactly(shares, total, full_tensor(heads, guaranteed), full_tensor(heads, length))

    def _as_published(self, scores: Tensor, total: int, guaranteed: int) -> Tensor:
        heads, length = scores.shape
        mean = max(0, total // heads - guaranteed)
        won = winners_per_head(scores, heads * (mean + guaranteed)) - guaranteed
        share = torch.round(won.double() * (1 - self.floor) + int(mean * self.floor)).long()
        return (share + guaranteed).clamp(guaranteed, length)
