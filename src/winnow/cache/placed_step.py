"""One more token of every row of a compressed layer, written where the device says, so that a CUDA graph can hold it.

Between two replays of a graph only numbers on the device change. So the places of new tokens are kept there, and the
host counts tokens for itself after every replay.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.cache.captured_step import CapturedStep
from winnow.cache.recent_queries import RecentQueries
from winnow.cache.tail import Tail
from winnow.errors import GraphError
from winnow.kernels.interface import AttentionPlan


class Places:
    """Places at which all layers of a cache keep their next token; a step of R rows begins and ends with them."""

    def __init__(self, tails: Sequence[Tail], rings: Sequence[RecentQueries | None]) -> None:
        """Those of the tails and rings of a cache's layers, which hold the same tokens.

        Raises GraphError where their rings differ.
        """
        sizes = {(ring.ring.shape[2], ring.next) if ring is not None else (0, 0) for ring in rings}
        if len(sizes) > 1:
            raise GraphError(
                "the layers of this cache hold queries of different tokens; start again from the prompt with a new "
                "CompressedCache."
            )
        self._columns, column = sizes.pop()
        self._counts = [tail.lengths_there for tail in tails]
        self.column = torch.full((1,), column, device=self._counts[0].device)
        """int64 [1]: the column of the rings that the next query takes."""
        self.rows = self._counts[0]
        """int64 [R]: tokens behind which the tails hold the new one."""

    def begin(self) -> None:
        """Notes the places of a token of every row, which the tails then count on the device."""
        self.rows = self._counts[0].clone()
        torch._foreach_add_(self._counts, 1)  # one launch for all layers

    def end(self) -> None:
        """Moves on behind that token."""
        if self._columns:
            self.column.add_(1).remainder_(self._columns)


class PlacedStep(CapturedStep):
    """The part of a layer in a step that a device captures; the host counts nothing of it."""

    __slots__ = ("_places",)

    def __init__(self, plan: AttentionPlan, tail: Tail, recent: RecentQueries | None, places: Places) -> None:
        super().__init__(plan, tail, recent)
        self._places = places

    def run(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `CapturedStep.run`."""
        self._tail.write_at(self._places.rows, keys, values)
        if self._recent is not None:
            self._recent.write_at(self._places.column, query)
        self.taken += 1
        return self.plan.run(query)
