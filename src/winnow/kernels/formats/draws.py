"""Random sizes of pruned entries, the same on every backend: a table of values, and a hash that chooses from it."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
from torch import Tensor

Recovery = Literal["degenerate", "gaussian", "exponential"]
"""Saliency of a pruned entry: the mean μ, or drawn from N(μ, σ²) or Exp(1 / μ)."""
DRAWS = 256
"""Values that a random recovery draws from."""


@cache
def draws(recovery: Recovery) -> Tensor:
    """fp32 [256]: equally likely values of N(0, 1) or Exp(1), with exactly its mean and, for the normal, its variance.

    A table in place of a random generator: the same draws on every backend.
    """
    share = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
    if recovery == "gaussian":
        normal = torch.special.ndtri(share)
        return (normal / normal.square().mean().sqrt()).float()
    exponential = -torch.log1p(-share)
    return (exponential / exponential.mean()).float()


def draw_indices(masks: Tensor, seed: int, dim: int) -> Tensor:
    """[n, D] int64 below 256: the value that channel j of a slot draws, hashed from the slot's own mask and the seed.

    h = seed; for every 32-bit word w of the mask (zero-padded, little-endian): h = mix(h ^ w); j draws
    mix(h + j·0x9e3779b9) >> 24, all modulo 2^32.
    """
    padded = torch.nn.functional.pad(masks, (0, -masks.shape[1] % 4)).to(torch.int64).view(len(masks), -1, 4)
    words = (padded << torch.tensor([0, 8, 16, 24], device=masks.device)).sum(-1)
    state = torch.full((len(masks),), seed & 0xFFFFFFFF, dtype=torch.int64, device=masks.device)
    for word in words.unbind(1):
        state = _mix(state ^ word)
    channel = torch.arange(dim, device=masks.device) * 0x9E3779B9
    return _mix((state[:, None] + channel) & 0xFFFFFFFF) >> 24


def _mix(state: Tensor) -> Tensor:
    """The finalizer of MurmurHash3 on 32-bit numbers."""
    state = state ^ (state >> 16)
    state = (state * 0x85EBCA6B) & 0xFFFFFFFF
    state = state ^ (state >> 13)
    state = (state * 0xC2B2AE35) & 0xFFFFFFFF
    return state ^ (state >> 16)
