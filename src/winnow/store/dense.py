"""Slots as they are: D key and Dv value entries in the model's dtype."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.kernels.interface import PrefixBlock
from winnow.select import Selection
from winnow.store.base import Store


@dataclass(frozen=True)
class Dense(Store):
    """Keys and values of the kept slots, unchanged, one after another: [S, D] and [S, Dv]."""

    def pack(self, keys: Tensor, values: Tensor, selection: Selection) -> PrefixBlock:
        """Gathers the selected rows. The result never shares memory with `keys` or `values`."""
        counts = selection.offsets.diff().to(keys.device)
        heads = torch.arange(keys.shape[0], device=keys.device).repeat_interleave(counts)
        positions = selection.positions.to(keys.device)
        return PrefixBlock(
            keys=keys.detach()[heads, positions],
            values=values.detach()[heads, positions],
            offsets=selection.offsets,
        )

    def bytes_per_slot(self, head_dim: int, value_dim: int, itemsize: int) -> float:
        """(D + Dv) entries."""
        return float((head_dim + value_dim) * itemsize)
