"""Queries and validity of a prompt's tokens, kept for its compression while the prompt is still arriving."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from winnow.cache.padding import on_host, places_of
from winnow.cache.stats import storage_bytes
from winnow.errors import CacheError


class RowParts(NamedTuple):
    """One sequence without its padding."""

    queries: Tensor
    """[Hq, n, D] of its last n tokens."""
    keys: Tensor
    """[H, N, D]"""
    values: Tensor
    """[H, N, Dv]"""
    paid: Tensor | None = None
    """[H, N] fp32, what all of its queries paid, where that was summed up."""


class Arriving:
    """Queries and validity of a prompt's tokens in one layer, from its first chunk until its compression."""

    def __init__(self) -> None:
        self._queries: Tensor | None = None  # [R, Hq, n, D] of the last n tokens
        self._valid: Tensor | None = None  # [R, N] bool on the CPU, False for padding
        self._paid: Tensor | None = None  # [R, H, N] fp32, 0 for padding

    @property
    def started(self) -> bool:
        """True if a chunk arrived."""
        return self._valid is not None

    @property
    def summed(self) -> bool:
        """True if what queries paid is summed up."""
        return self._paid is not None

    @property
    def queries(self) -> int:
        """Queries of every row that are there, of the last tokens."""
        return 0 if self._queries is None else self._queries.shape[2]

    def add(self, queries: Tensor, valid: Tensor | None, keep: int | None, paid: Tensor | None = None) -> None:
        """A chunk's queries [R, Hq, Q, D] and the validity [R, ≥ Q] of the tokens up to its end (None: all valid).

        keep: of how many of a row's last valid tokens queries are kept, as a copy; None: all of them, in the model's
        tensor, which must not outlive this forward pass. paid: [R, H, N] fp32, what these queries paid the N tokens up
        to the chunk's end, where it is summed up; it is taken over.
        """
        if paid is not None and self._paid is not None:
            paid[..., : self._paid.shape[-1]] += self._paid
        self._paid = paid
        rows, _, new, _ = queries.shape
        here = torch.ones(rows, new, dtype=torch.bool, device="cpu") if valid is None else on_host(valid)[:, -new:]
        queries = queries.detach()
        if self._queries is None or self._valid is None:
            self._queries, self._valid = queries if keep is None else _last(queries, here, keep).clone(), here
            return
        self._valid = torch.cat([self._valid, here], dim=1)
        held = torch.cat([self._queries, queries], dim=2)
        last = held if keep is None else _last(held, self._valid, keep)
        self._queries = held if last.shape == held.shape else last.clone()

    def check_crop(self, tokens: int) -> None:
        """Raises CacheError where what the last tokens paid cannot be taken back."""
        if tokens and self.summed:
            raise CacheError(
                f"cannot crop {tokens} tokens of a prompt whose attention is summed up as it arrives (h2o): call "
                "cache.activate_past_recording() before its first chunk, or start again from the prompt."
            )

    def crop(self, tokens: int) -> None:
        """The last tokens were taken back."""
        if self._queries is not None and self._valid is not None:
            self._queries, self._valid = self._queries[:, :, :-tokens], self._valid[:, :-tokens]

    def select(self, rows: Tensor) -> None:
        """Rows in a new order, with repeats or omissions."""
        if self._queries is not None and self._valid is not None:
            self._queries = self._queries.index_select(0, rows.to(self._queries.device))
            self._valid = self._valid.index_select(0, rows.cpu())
        if self._paid is not None:
            self._paid = self._paid.index_select(0, rows.to(self._paid.device))

    def row(self, row: int, keys: Tensor, values: Tensor) -> RowParts:
        """One sequence of the dense prompt keys [R, H, N, D] and values [R, H, N, Dv], without its padding.

        Raises:
            CacheError: nothing arrived yet.
        """
        valid = self.valid(row)
        assert self._queries is not None
        queries, keys, values = self._queries[row], keys[row].detach(), values[row].detach()
        paid = None if self._paid is None else self._paid[row]
        if bool(valid.all()):
            return RowParts(queries, keys, values, paid)
        tokens = places_of(valid, keys.device)
        asking = places_of(valid[valid.shape[0] - queries.shape[1] :], keys.device)
        paid = None if paid is None else paid[:, tokens]
        return RowParts(queries[:, asking], keys[:, tokens], values[:, tokens], paid)

    def valid(self, row: int) -> Tensor:
        """[N] bool on the CPU, the tokens of a row that are no padding. Raises CacheError: nothing arrived yet."""
        if self._valid is None:
            raise CacheError("a prompt can only be compressed after it was attended to; run it through the model.")
        return self._valid[row]

    def nbytes(self) -> int:
        """Bytes held."""
        return storage_bytes([self._queries, self._valid, self._paid])


def _last(queries: Tensor, valid: Tensor, count: int) -> Tensor:
    """Queries [R, Hq, n, D] from the `count`-th last valid token of every row on, of tokens [R, ≥ n] valid or not."""
    padding = int((~valid).sum(dim=1).max()) if valid.numel() else 0
    return queries[:, :, max(0, queries.shape[2] - count - padding) :]
