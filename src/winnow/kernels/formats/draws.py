"""Random sizes of pruned entries, the same on every backend: a table of values, and a hash that chooses from it.

A truncated distribution is drawn from the part of the table between its bounds, which is what drawing again until a
value lies between them comes to. Bounds are compared with the table's own numbers, so no rounding of a product decides.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Recovery = Literal["degenerate", "gaussian", "exponential", "truncated gaussian", "truncated exponential", "constant"]
"""Saliency of a pruned entry: μ; drawn from N(μ, σ²) or Exp(1 / μ); from these between 0 and c; a constant."""
STATISTICS: dict[Recovery, int] = {
    "degenerate": 1,
    "gaussian": 2,
    "exponential": 1,
    "truncated gaussian": 3,
    "truncated exponential": 2,
    "constant": 0,
}
"""Numbers that a slot keeps for its recovery: μ, σ and c as far as it needs them."""
DRAWS = 256
"""Values that a random recovery draws from."""


class Draws(NamedTuple):
    """Distribution of every slot: offset + factor·z, z equally likely any of `possible` numbers of a table."""

    table: Tensor
    """fp32 [256], ascending"""
    offset: Tensor
    """fp32 [n, 1]"""
    factor: Tensor
    first: Tensor
    """int64 [n, 1]: the first number of the table that may be drawn."""
    possible: Tensor
    """Zero where no number lies between the bounds."""


def distribution(recovery: Recovery, stats: Tensor) -> Draws:
    """Distributions that slots with statistics [n, 1 to 3] draw from."""
    table = draws(recovery).to(stats.device)
    mean, *rest = stats.float().split(1, dim=1)
    none, all_of_it = torch.zeros_like(mean, dtype=torch.int64), torch.full_like(mean, DRAWS, dtype=torch.int64)
    if recovery == "gaussian":
        return Draws(table, mean, rest[0], none, all_of_it)
    if recovery == "exponential":
        return Draws(table, torch.zeros_like(mean), mean, none, all_of_it)
    if recovery == "truncated gaussian":
        deviation, most = rest
        first = torch.searchsorted(table, -mean / deviation)
        stop = torch.searchsorted(table, (most - mean) / deviation, right=True)
        return Draws(table, mean, deviation, first, torch.where(deviation > 0, stop - first, 0).clamp(min=0))
    stop = torch.searchsorted(table, rest[0] / mean, right=True)
    return Draws(table, torch.zeros_like(mean), mean, none, torch.where(mean > 0, stop, 0))


@cache
def draws(recovery: Recovery) -> Tensor:
    """fp32 [256], ascending: equally likely values of N(0, 1) or Exp(1), its mean and the normal's variance exact.

    A table in place of a random generator: the same draws on every backend.
    """
    share = (torch.arange(DRAWS, dtype=torch.float64, device="cpu") + 0.5) / DRAWS
    if recovery.endswith("gaussian"):
        normal = torch.special.ndtri(share)
        return (normal / normal.square().mean().sqrt()).float()
    exponential = -torch.log1p(-share)
    return (exponential / exponential.mean()).float()


def draw_indices(masks: Tensor, seed: int, dim: int, drawn: Draws) -> Tensor:
    """[n, D] int64: the number of the table that channel j of a slot draws, from the slot's own mask and the seed.

    h = seed; for every 32-bit word w of the mask (zero-padded, little-endian): h = mix(h ^ w), all modulo 2^32; of
    `possible` numbers from `first` on j draws that of first + (mix(h + j·0x9e3779b9)·possible >> 32).
    """
    padded = torch.nn.functional.pad(masks, (0, -masks.shape[1] % 4)).to(torch.int64).view(len(masks), -1, 4)
    words = (padded << torch.tensor([0, 8, 16, 24], device=masks.device)).sum(-1)
    state = torch.full((len(masks),), seed & 0xFFFFFFFF, dtype=torch.int64, device=masks.device)
    for word in words.unbind(1):
        state = _mix(state ^ word)
    channel = torch.arange(dim, device=masks.device) * 0x9E3779B9
    hashes = _mix((state[:, None] + channel) & 0xFFFFFFFF)
    return (drawn.first + (hashes * drawn.possible >> 32)).clamp(max=DRAWS - 1)


def _mix(state: Tensor) -> Tensor:
    """The finalizer of MurmurHash3 on 32-bit numbers."""
    state = state ^ (state >> 16)
    state = (state * 0x85EBCA6B) & 0xFFFFFFFF
    state = state ^ (state >> 13)
    state = (state * 0xC2B2AE35) & 0xFFFFFFFF
    return state ^ (state >> 16)
