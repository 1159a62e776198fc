"""The compressed prompt of one sequence in one layer: immutable, shared by any number of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from winnow.kernels.interface import PrefixBlock
from winnow.method import Method
from winnow.score.base import LayerView

POSITION_BYTES = 4
"""A kept slot remembers its position as one int32."""


@dataclass(frozen=True, eq=False)
class Prefix:
    """Kept slots of every KV head one after another. Nothing writes to it after `compress_layer`."""

    block: PrefixBlock
    """What the kernels read: packed keys and values, and where each head begins."""
    positions: Tensor
    """[S] int32, the kept positions of each head, ascending, counted without padding."""
    length: int
    """N, the tokens of the prompt that it was made from."""

    def slots(self) -> list[int]:
        """Slots of every KV head."""
        return [int(n) for n in self.block.offsets.diff()]

    def kept(self) -> list[Tensor]:
        """Kept positions per KV head, ascending, int64."""
        return list(self.positions.to(torch.int64).split(self.slots()))

    def bytes(self) -> dict[str, int]:
        """Bytes held, by kind."""
        return {
            "keys": self.block.keys.nbytes,
            "values": self.block.values.nbytes,
            "indices": self.positions.nbytes + self.block.offsets.nbytes,
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> Prefix:
        # Immutable, so a fork of a cache shares it.
        return self


def compress_layer(method: Method, view: LayerView, total: int) -> Prefix:
    """Score, allocate, select and pack one layer of one sequence into `total` slots."""
    selection = method.select(view, total)
    block = method.store.pack(view.keys, view.values, selection)
    positions = selection.positions.to(device=view.keys.device, dtype=torch.int32)
    return Prefix(block, positions, view.keys.shape[1])
