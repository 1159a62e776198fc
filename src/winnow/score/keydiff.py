"""KeyDiff: Key Similarity-Based KV Cache Eviction (Park et al. 2025, arXiv 2504.15364)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.score.base import Scorer
from winnow.view import LayerView

_CHUNK = 1024
"""Tokens converted to fp32 at once."""
_LEAST_NORM = 1e-12
"""A zero key has no direction; its cosine is 0."""


@dataclass(frozen=True)
class KeyDiff(Scorer):
    """Tokens are worth how little their key resembles the mean direction of all keys. Needs no queries."""

    def __call__(self, view: LayerView) -> Tensor:
        heads, length, dim = view.keys.shape
        norms = view.keys.new_empty((heads, length), dtype=torch.float32)
        anchor = view.keys.new_zeros((heads, 1, dim), dtype=torch.float32)
        # anchor = direction of 1/N Σ_t k_t/‖k_t‖
        for keys, norm in zip(_chunks(view.keys), norms.split(_CHUNK, dim=1), strict=True):
            norm.copy_(torch.linalg.vector_norm(keys, dim=-1).clamp_(min=_LEAST_NORM))
            anchor += norm.reciprocal()[:, None] @ keys
        anchor /= torch.linalg.vector_norm(anchor, dim=-1, keepdim=True).clamp_(min=_LEAST_NORM)
        # s[t] = -cos(k_t, anchor)
        along = torch.cat([anchor @ keys.transpose(1, 2) for keys in _chunks(view.keys)], dim=-1)
        return -along[:, 0] / norms


def _chunks(keys: Tensor) -> Iterator[Tensor]:
    return (chunk.float() for chunk in keys.split(_CHUNK, dim=1))
