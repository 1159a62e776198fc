"""Layers for benchmarks of the GPU kernels: random prefixes as stores write them, a short tail, one step's queries."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import winnow
from winnow.kernels import AttentionSpec, Block, TailSegments
from winnow.kernels.formats.serialize import on_device
from winnow.select import select
from winnow.view import LayerView

WINDOW = 32
"""Last tokens of every head, which stores may keep dense."""
CAPACITY = 64
"""Tokens that a tail has room for."""


class Shape(NamedTuple):
    """Sizes of an attention layer."""

    heads: int
    group: int
    """Query heads of a KV head."""
    dim: int
    dtype: torch.dtype

    @property
    def slot_bytes(self) -> int:
        """Bytes of a dense slot, key and value."""
        return 2 * self.dim * self.dtype.itemsize


class Layer(NamedTuple):
    """One layer's cache and one step's queries."""

    prefixes: list[Block]
    tail: TailSegments
    query: Tensor
    """[R, Hq, Q, D]"""
    spec: AttentionSpec

    def nbytes(self) -> int:
        """Bytes of the prefixes."""
        return sum(sum(prefix.bytes().values()) for prefix in self.prefixes)


def packed(store: str, slots: Sequence[int], shape: Shape, device: torch.device) -> Block:
    """Random keys and values of some slots per head, as a store writes them ("full", "bits(4)", "spark(0.5)")."""
    longest = max(slots)
    keys, values = (torch.randn(shape.heads, longest, shape.dim, device=device).to(shape.dtype) for _ in range(2))
    queries = torch.randn(shape.heads * shape.group, WINDOW, shape.dim, device=device).to(shape.dtype)
    view = LayerView(0, 1, queries, keys, values, shape.dim**-0.5)
    # The last tokens of every head, as if those before were dropped.
    kept = select(
        torch.arange(longest, device=device, dtype=torch.float32).expand(shape.heads, -1), torch.tensor(slots)
    )
    method = winnow.method("full" if store == "full" else f"full+{store}")
    return method.store.for_model("random", (shape.heads,)).pack(view, kept, min(WINDOW, *slots))


def layer(
    store: str, slots: Sequence[int], shape: Shape, device: torch.device, rows: int = 1, queries: int = 1
) -> Layer:
    """A layer of rows whose heads hold `slots` tokens each; memory of every row its own."""
    first = on_device(packed(store, slots, shape, device), device)
    prefixes = [first, *(copy.deepcopy(first) for _ in range(rows - 1))]
    room = torch.randn(rows, shape.heads, CAPACITY, shape.dim, device=device).to(shape.dtype)
    lengths = torch.full((rows,), CAPACITY // 2)
    tail = TailSegments(room, room.clone(), lengths, lengths.to(device))
    query = torch.randn(rows, queries, shape.heads * shape.group, shape.dim, device=device).to(shape.dtype)
    return Layer(prefixes, tail, query.transpose(1, 2), AttentionSpec(shape.dim**-0.5))
