"""Coverage: tokens that earlier layers kept, for scorers that spread what a model keeps over its layers."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.cache.prefix import Prefix
from winnow.view import LayerView


class Coverage:
    """In how many layers so far any head kept each token of a text, for every row of a batch.

    Layers are compressed in their order, and folded in it, each for all rows. The first one starts the count afresh,
    the last one ends it, so nothing outlives a prompt or a fold.
    """

    def __init__(self) -> None:
        self._counts: dict[int, Tensor] = {}  # row -> [N] int32

    def __copy__(self) -> Coverage:
        twin = Coverage()
        twin._counts = dict(self._counts)  # counts themselves are never written to
        return twin

    def before(self, row: int, layer: int, length: int, device: torch.device) -> Tensor:
        """[N] int32: the count of a row of `length` tokens when `layer` is about to be compressed."""
        if layer == 0:
            self._counts[row] = torch.zeros(length, dtype=torch.int32, device=device)
        return self._counts[row].to(device)

    def add(self, row: int, view: LayerView, prefix: Prefix) -> None:
        """A layer of a row was compressed."""
        counts = self._counts.pop(row)
        if view.layer + 1 < view.layers:
            covered = torch.zeros(len(counts), dtype=torch.int32, device=prefix.positions.device)
            covered[prefix.positions] = 1
            self._counts[row] = counts.to(covered.device) + covered
