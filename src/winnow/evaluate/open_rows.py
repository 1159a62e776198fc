"""Rows of a batch that go on, and those that ended and leave it."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.cache.compressed import CompressedCache


class OpenRows:
    """Rows 0 to `count` - 1, of which fewer and fewer are still in the batch."""

    def __init__(self, count: int) -> None:
        self.there = list(range(count))
        """Rows in the batch, in its order."""
        self.open = set(self.there)
        """Those of them that go on."""

    def without_ended(self, cache: CompressedCache, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Tensors [rows, …] of the batch, and its cache, without the rows that ended, once these are half of it.

        Earlier it does not pay: a batch that changes is worked out anew.
        """
        if 2 * len(self.open) > len(self.there):
            return tensors
        kept = torch.tensor(
            [place for place, row in enumerate(self.there) if row in self.open], dtype=torch.int64, device="cpu"
        )
        self.there = [row for row in self.there if row in self.open]
        # As beams do it: the one way to fewer rows that layers with a linear state know, too.
        cache.reorder_cache(kept)
        return tuple(tensor[kept.to(tensor.device)] for tensor in tensors)
