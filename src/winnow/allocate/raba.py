"""Redundancy-Aware Budget Allocation of ApertureKV (Mitigating the Echo Chamber Effect in KV Cache Compression)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from winnow.allocate.ada import winners_per_head
from winnow.allocate.base import Allocation, Allocator, HeadAllocator
from winnow.allocate.rounding import LEAST_WEIGHT, ROUNDING, Rounding, check_rounding, full_tensor, round_exactly
from winnow.allocate.uniform import Uniform
from winnow.parameters import check_choice, meaning

Divergence = Literal["jsd", "kl", "ce"]

_BLOCK = 1 << 20
"""Entries of an [H, H, tokens] block that exist at once (8 MiB in float64)."""


def distributions(scores: Tensor) -> Tensor:
    """s_h = softmax of a head's scores over its tokens (Eq. 13): [H, M] -> [H, M] float64.

    Scores that are themselves probabilities give a nearly uniform result, whose differences fp32 would lose.
    """
    return scores.double().softmax(dim=-1)


def jensen_shannon(s: Tensor) -> Tensor:
    """[H, H]: JSD of every two of the distributions [H, M] (Eq. 15), in nats.

    Entropy of the mean of two heads minus the mean of their entropies, a block of tokens at a time.
    """
    heads = s.shape[0]
    mixed = s.new_zeros(heads, heads)
    for part in s.split(max(1, _BLOCK // heads**2), dim=1):
        mean = (part[:, None] + part) / 2
        mixed -= torch.special.xlogy(mean, mean).sum(dim=-1)
    entropy = -torch.special.xlogy(s, s).sum(dim=-1)
    return mixed - (entropy[:, None] + entropy) / 2


def distinctiveness(s: Tensor, divergence: Divergence) -> Tensor:
    """D_h = mean divergence of s_h from the other heads' distributions (Eq. 15): [H, M] -> [H]; 0 for a single head."""
    heads = s.shape[0]
    if heads == 1:
        return s.new_zeros(1)
    pairs = jensen_shannon(s) if divergence == "jsd" else _cross_entropy(s)
    if divergence == "kl":
        pairs = pairs - pairs.diagonal()[:, None]  # KL(p‖q) = CE(p, q) - CE(p, p)
    others = pairs.sum(dim=1) - pairs.diagonal()
    return (others / (heads - 1)).clamp(min=0)


@dataclass(frozen=True)
class RABA(HeadAllocator):
    """Gives a layer's heads slots for winning tokens, and more of them the less a head's scores resemble other heads'.

    s_h is the softmax of a head's scores, B_h the number of the H·b best of all s that are head h's, and D_h its mean
    divergence from the others. Head h gets w + H·b·D_h·B_h/Σ D·B slots (Eq. 13-17). If all heads are alike, B_h alone
    decides. Tokens that are always kept (+inf) take no part. `across` gives the layer totals.

    rounding="paper": b and every head's share are rounded down; the leftover and what exceeds the prompt are lost.
    """

    divergence: Divergence = field(
        default="jsd", metadata=meaning("how heads are compared: jsd, kl (Kullback-Leibler) or ce (cross-entropy)")
    )
    rounding: Rounding = field(default="exact", metadata=ROUNDING)
    across: Allocator = field(default_factory=Uniform, kw_only=True)

    def __post_init__(self) -> None:
        check_choice(self, "divergence", ("jsd", "kl", "ce"))
        check_rounding(self)

    def head_slots(self, scores: Tensor, allocation: Allocation, layer: int) -> Tensor:
        heads, length = scores.shape
        total, guaranteed = allocation.totals[layer], allocation.plan.guaranteed
        low, high = full_tensor(heads, guaranteed), full_tensor(heads, length)
        outside = total - heads * guaranteed
        if self.rounding == "paper":
            outside -= outside % heads
        shares = self._shares(scores, outside)
        if self.rounding == "paper":
            return (shares.floor().long() + guaranteed).clamp(low, high)
        return round_exactly(shares + guaranteed, total, low, high, shares.clamp(min=LEAST_WEIGHT * max(outside, 1)))

    def _shares(self, scores: Tensor, outside: int) -> Tensor:
        """[H] float64 on the CPU: slots outside the guaranteed ones, summing to `outside`."""
        if outside == 0:
            return torch.zeros(len(scores), dtype=torch.float64, device="cpu")
        # +inf is always kept, of any number of tokens; -inf is a column that no head may fill.
        apart = ~scores.isfinite()
        s = distributions(scores.masked_fill(apart, -torch.inf)).masked_fill(apart, 0)
        won = winners_per_head(s.masked_fill(apart, -1), outside).double()
        weighted = distinctiveness(s, self.divergence).cpu() * won
        if not float(weighted.sum()) > 0:
            weighted = won
        return weighted / weighted.sum() * outside


def _cross_entropy(s: Tensor) -> Tensor:
    """[H, H]: -Σ_t s_h[t]·ln s_h'[t]."""
    return -s @ s.clamp(min=torch.finfo(s.dtype).tiny).log().t()
