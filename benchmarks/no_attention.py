"""Attention and a cache that do nothing, next to which others are measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.masking_utils import sdpa_mask


class Handing(DynamicCache):
    """A cache that keeps nothing."""

    def update(self, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keys and values as they came."""
        return key, value


class Nothing:
    """Attention that returns zeros, made once for each shape."""

    def __init__(self) -> None:
        self._made: dict[tuple[torch.Size, torch.dtype], Tensor] = {}

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """[R, Q, Hq, D] of query [R, Hq, Q, D]."""
        kind = query.shape, query.dtype
        if kind not in self._made:
            self._made[kind] = torch.zeros_like(query).transpose(1, 2).contiguous()
        return self._made[kind], None


AttentionInterface.register("nothing", Nothing())
AttentionMaskInterface.register("nothing", sdpa_mask)
