"""The queries of the last tokens of every row, for the next time that their cache is compressed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.cache.writable import writable
from winnow.kernels.columns import Columns


@dataclass(eq=False, slots=True)
class RingMark:
    """A ring before tokens were added."""

    ring: Tensor
    """Itself: a single token takes the spare column, chunks make a new ring."""
    next: int
    held: list[int]


class RecentQueries:
    """A ring of n queries per row [R, Hq, n + 1, D]: a token costs its own copy, and memory does not grow.

    The newest query goes into a spare column, so that the one whose place it takes is there while it may be taken back.

    Chunks of several tokens may make it larger: where they may be taken back in part (assisted decoding), so that older
    queries are needed again, and where the queries of all tokens are asked for.
    """

    def __init__(self, rows: Sequence[Tensor], count: int) -> None:
        """rows: the last queries [Hq, *, D] of each, oldest first; `count`: how many of them will be asked for."""
        self.count = count
        self.ring = _stacked([row[:, row.shape[1] - min(row.shape[1], count) :] for row in rows], count)
        self.next = 0  # the spare column
        self._held = [min(row.shape[1], count) for row in rows]  # the newest columns of a row that are queries
        self._tried: Tensor | None = None
        self._columns: Columns | None = None

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
        self.ring, self.next = _stacked([row[:, -size:] for row in rows], size), 0
        self._held = [min(row.shape[1], size) for row in rows]

    def hold(self, queries: Tensor) -> None:
        """Queries [R, Hq, Q, D] of tokens on trial, of which `take` adds the first."""
        self._tried = queries.detach()

    def take(self, wrong: int) -> None:
        """Adds all but the last `wrong` of the queries that are held, as if they had come one by one."""
        tried, self._tried = self._tried, None
        if tried is None or not self.count:
            return
        right, size = tried.shape[2] - wrong, self.ring.shape[2]
        # Of more than there are columns, the first would be gone by the end.
        queries = tried[:, :, max(0, right - size) : right]
        columns = torch.arange(self.next, self.next + queries.shape[2], device=tried.device) % size
        self.ring.index_copy_(2, columns, queries)
        self.next = (self.next + len(columns)) % size
        self._held = [min(held + len(columns), size - 1) for held in self._held]

    def row(self, row: int) -> Tensor:
        """[Hq, n, D] the queries that are held of a row's last tokens, oldest first; a copy."""
        size = self.ring.shape[2]  # one more than it holds, or none
        order = torch.arange(self.next + size - self._held[row], self.next + size, device=self.ring.device)
        order %= max(size, 1)
        return self.ring[row].index_select(1, order)

    def held(self, row: int) -> int:
        """Queries of a row that are there: fewer than `count` only after short prompts and `crop`."""
        return self._held[row]

    def is_full(self) -> bool:
        """True if the next query of every row takes the place of another."""
        return all(held >= self.ring.shape[2] - 1 for held in self._held)

    def advance(self) -> None:
        """A query of every row is in the spare column, `next`."""
        size = self.ring.shape[2]
        self.next = (self.next + 1) % size if size else 0

    def write_at(self, column: Tensor, queries: Tensor) -> None:
        """Writes a query of every row [R, Hq, 1, D] into a column, int64 [1] on the device; `count_one` counts it."""
        if self.count:
            self.ring.index_copy_(2, column, queries.detach())

    def count_one(self) -> None:
        """Counts a query of every row that is in the spare column."""
        if not self.count:
            return
        self.advance()
        if not self.is_full():
            self._held = [min(held + 1, self.ring.shape[2] - 1) for held in self._held]

    def crop(self, tokens: Tensor | int) -> None:
        """The last tokens were taken back, so many of all rows or of each [R]."""
        if not self.count:
            return
        counts = torch.as_tensor(tokens, device="cpu").expand(len(self._held)).tolist()
        rows = [self.row(index) for index in range(len(self._held))]
        rows = [row[:, : max(0, row.shape[1] - count)] for row, count in zip(rows, counts, strict=True)]
        self.ring, self.next = _stacked(rows, self.ring.shape[2] - 1), 0
        self._held = [row.shape[1] for row in rows]

    def mark(self) -> RingMark:
        """The ring before tokens are added, for `restore`: one of them, or a chunk."""
        return RingMark(self.ring, self.next, self._held)

    def restore(self, mark: RingMark) -> None:
        """Forgets what was added since a mark."""
        self.ring, self.next, self._held, self._tried = mark.ring, mark.next, mark.held, None

    def select(self, rows: Tensor) -> None:
        """Rows in a new order, with repeats or omissions."""
        with writable():
            self.ring = self.ring.index_select(0, rows.to(self.ring.device))
        self._held = [self._held[row] for row in rows.tolist()]

    def trimmed(self) -> RecentQueries:
        """A ring of the last queries that will be asked for, where a chunk made it larger."""
        if self.ring.shape[2] == columns_of(self.count):
            return self
        return RecentQueries([self.row(row) for row in range(len(self._held))], self.count)

    def joined(self, others: Sequence[RecentQueries]) -> RecentQueries:
        """These rows and those of others behind them."""
        every = [self, *others]
        return RecentQueries([each.row(row) for each in every for row in range(len(each._held))], self.count)

    def nbytes(self) -> int:
        """Bytes held."""
        return self.ring.nbytes

    def _add_one(self, queries: Tensor) -> None:
        if self._columns is None or not self._columns.are(self.ring):
            self._columns = Columns.over(self.ring)
        if self._columns is None or not self._columns.put(self.next, queries):
            self.ring[:, :, self.next].copy_(queries[:, :, 0])
        self.count_one()


def columns_of(count: int) -> int:
    """Columns of a ring that holds so many queries of a row."""
    return count + 1 if count else 0


def _stacked(rows: Sequence[Tensor], size: int) -> Tensor:
    """[R, Hq, size + 1, D] of rows [Hq, ≤ size, D], each at the end of its ring; the first column is the spare one."""
    first, columns = rows[0], columns_of(size)
    with writable():
        ring = first.new_zeros(len(rows), first.shape[0], columns, first.shape[2])
    for into, row in zip(ring, rows, strict=True):
        into[:, columns - row.shape[1] :] = row
    return ring
