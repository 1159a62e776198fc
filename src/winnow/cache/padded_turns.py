"""Turns that were padded: which of a cache's last columns are tokens of a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class PaddedTurn(NamedTuple):
    """New tokens that came with padding, which is not stored, after a prompt."""

    start: int
    """Columns before it."""
    valid: Tensor
    """[R, Q] bool on the CPU: tokens that are no padding."""

    def until(self, seen: int) -> PaddedTurn:
        """The part of it that lies among so many columns."""
        return PaddedTurn(self.start, self.valid[:, : seen - self.start])

    def padding_from(self, start: int) -> Tensor:
        """[R] columns from `start` on that are padding."""
        return (~self.valid[:, max(0, start - self.start) :]).sum(dim=1)


def until(turns: Sequence[PaddedTurn], seen: int) -> tuple[PaddedTurn, ...]:
    """The parts of turns that lie among so many columns, which a cache holds."""
    return tuple(turn.until(seen) for turn in turns if turn.start < seen)


def last_tokens(turns: Sequence[PaddedTurn], seen: int, columns: int, rows: int) -> Tensor:
    """[R] int64 tokens among the last `columns` of `seen` columns."""
    found = torch.full((rows,), columns, device="cpu")
    for turn in turns:
        found -= turn.padding_from(seen - columns)
    return found


def selected(turns: Sequence[PaddedTurn], rows: Tensor) -> tuple[PaddedTurn, ...]:
    """The same turns of rows in a new order, with repeats or omissions."""
    return tuple(PaddedTurn(turn.start, turn.valid[rows.cpu()]) for turn in turns)
