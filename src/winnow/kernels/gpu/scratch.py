"""Memory of a step: prepared queries and partial results, of as many tokens at a time as a bound allows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

KEPT = 4 << 20
"""Bytes that a plan keeps for its next step, at most. Every layer has a plan; a step that takes more has so much to
read that asking for memory anew does not count."""
MOST = 64 << 20
"""Bytes of a call, at most: more tokens than that are attended to a slice after the other. One token may take more."""


class Scratch(NamedTuple):
    """Memory for some tokens of every row; fewer use the front of it."""

    tokens: int
    query_heads: int
    asked_queries: Tensor
    """[A, Hq, Q, D]"""
    bias: Tensor
    """fp32 [A, Hq, Q]"""
    maxima: Tensor
    """fp32 [C, G·Q]"""
    totals: Tensor
    """fp32 [C, G·Q]"""
    sums: Tensor
    """fp32 [C, G·Q, Dv]"""

    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(each.nbytes for each in self if isinstance(each, Tensor))


class Needs(NamedTuple):
    """Sizes on which the memory of a token depends."""

    sets: int
    """Sets of queries that ask keys in coordinates of their own."""
    chunks: int
    query_heads: int
    group: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    """Dtype of prepared queries."""

    def bytes_of_token(self) -> int:
        """Bytes of scratch for one token of every row."""
        asked = self.sets * self.query_heads * (self.key_dim * self.dtype.itemsize + 4)
        return asked + self.chunks * self.group * (2 + self.value_dim) * 4

    def tokens_at_a_time(self, tokens: int) -> int:
        """Tokens of a slice of so many: all of them, or the largest power of two that is within the bound.

        A power of two fills the tiles of queries.
        """
        most = max(1, MOST // max(1, self.bytes_of_token()))
        return tokens if tokens <= most else 1 << (most.bit_length() - 1)

    def are_small(self, tokens: int) -> bool:
        """True if the memory of so many tokens may be kept."""
        return tokens * self.bytes_of_token() <= KEPT

    def made(self, tokens: int, device: torch.device) -> Scratch:
        """Memory for so many tokens."""
        asked = self.group * tokens

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return Scratch(
            tokens,
            self.query_heads,
            empty(self.sets, self.query_heads, tokens, self.key_dim, dtype=self.dtype),
            empty(self.sets, self.query_heads, tokens),
            empty(self.chunks, asked),
            empty(self.chunks, asked),
            empty(self.chunks, asked, self.value_dim),
        )
