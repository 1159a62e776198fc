"""A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression.

Devoto et al. 2024, arXiv 2406.11430.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.score.base import Scorer
from winnow.score.blocks import tokens_at_once
from winnow.view import LayerView

_CHUNK = 1024
"""Tokens converted to fp32 at once on a CPU."""


@dataclass(frozen=True)
class Knorm(Scorer):
    """Scores tokens by how small the norm of their key is: such keys tend to receive much attention. No queries."""

    def __call__(self, view: LayerView) -> Tensor:
        # s[t] = -‖k_t‖₂
        chunks = view.keys.split(tokens_at_once(view.keys, _CHUNK), dim=1)
        return -torch.cat([torch.linalg.vector_norm(keys.float(), dim=-1) for keys in chunks], dim=1)
