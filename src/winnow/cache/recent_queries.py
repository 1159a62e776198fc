"""The queries of the last tokens of every row, for the next time that their cache is compressed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class RingMark(NamedTuple):
    """A ring before tokens were added."""

    ring: Tensor
    next: int
    held: list[int]
    replaced: Tensor | None
    """[R, Hq, D] the column that a single token takes; chunks make a new ring."""


class RecentQueries:
    """A ring of n queries per row [R, Hq, n, D]: a token costs its own copy, and memory does not grow.

    Chunks of several tokens may make it larger: where they may be taken back in part (assisted decoding), so that older
    queries are needed again, and where the queries of all tokens are asked for.
    """

    def __init__(self, rows: Sequence[Tensor], count: int) -> None:
        """rows: the last queries [Hq, *, D] of each, oldest first; `count`: how many of them will be asked for."""
        self.count = count
        self._ring = _stacked([row[:, row.shape[1] - min(row.shape[1], count) :] for row in rows], count)
        self._next = 0  # the column of the oldest query, which the next one replaces
        self._held = [min(row.shape[1], count) for row in rows]  # the newest columns of a row that are queries

    def add(self, queries: Tensor, valid: Tensor | None, size: int = 0) -> None:
        """New tokens' queries [R, Hq, Q, D]; `valid` [R, Q] if some are padding. A chunk is kept at a larger `size`."""
        if not self.count:
            return
        queries = queries.detach()
        if queries.shape[2] == 1 and valid is None:
            self._add_one(queries)
            return
        new = queries.unbind(0) if valid is None else [row[:, mark] for row, mark in zip(queries, valid, strict=True)]
        rows = [torch.cat([self.row(index), each], dim=1) for index, each in enumerate(new)]
        size = max(self.count, size)
        self._ring, self._next = _stacked([row[:, -size:] for row in rows], size), 0
        self._held = [min(row.shape[1], size) for row in rows]

    def row(self, row: int) -> Tensor:
        """[Hq, n, D] the queries that are held of a row's last tokens, oldest first; a copy."""
        size = self._ring.shape[2]
        order = torch.arange(self._next + size - self._held[row], self._next + size, device=self._ring.device)
        order %= max(size, 1)
        return self._ring[row].index_select(1, order)

    def held(self, row: int) -> int:
        """Queries of a row that are there: fewer than `count` only after short prompts and `crop`."""
        return self._held[row]

    def crop(self, tokens: int) -> None:
        """The last tokens were taken back."""
        if not self.count:
            return
        size = self._ring.shape[2]
        rows = [self.row(index) for index in range(len(self._held))]
        rows = [row[:, : max(0, row.shape[1] - tokens)] for row in rows]
        self._ring, self._next = _stacked(rows, size), 0
        self._held = [row.shape[1] for row in rows]

    def mark(self, new: int) -> RingMark:
        """The ring before `new` tokens are added, for `restore`."""
        replaced = self._ring[:, :, self._next].clone() if new == 1 and self.count else None
        return RingMark(self._ring, self._next, self._held, replaced)

    def restore(self, mark: RingMark) -> None:
        """Forgets what was added since a mark."""
        if mark.replaced is not None:
            mark.ring[:, :, mark.next] = mark.replaced
        self._ring, self._next, self._held = mark.ring, mark.next, mark.held

    def select(self, rows: Tensor) -> None:
        """Rows in a new order, with repeats or omissions."""
        self._ring = self._ring.index_select(0, rows.to(self._ring.device))
        self._held = [self._held[row] for row in rows.tolist()]

    def trimmed(self) -> RecentQueries:
        """A ring of the last queries that will be asked for, where a chunk made it larger."""
        if self._ring.shape[2] == self.count:
            return self
        return RecentQueries([self.row(row) for row in range(len(self._held))], self.count)

    def joined(self, others: Sequence[RecentQueries]) -> RecentQueries:
        """These rows and those of others behind them."""
        every = [self, *others]
        return RecentQueries([each.row(row) for each in every for row in range(len(each._held))], self.count)

    def nbytes(self) -> int:
        """Bytes held."""
        return self._ring.nbytes

    def _add_one(self, queries: Tensor) -> None:
        size = self._ring.shape[2]
        self._ring[:, :, self._next].copy_(queries[:, :, 0])
        self._next = (self._next + 1) % size
        self._held = [min(held + 1, size) for held in self._held]


def _stacked(rows: Sequence[Tensor], size: int) -> Tensor:
    """[R, Hq, size, D] of rows [Hq, ≤ size, D], each at the end of its ring."""
    first = rows[0]
    ring = first.new_zeros(len(rows), first.shape[0], size, first.shape[2])
    for into, row in zip(ring, rows, strict=True):
        into[:, size - row.shape[1] :] = row
    return ring
