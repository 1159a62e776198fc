"""What every kernel reads: an immutable packed prefix, a dense tail, and how logits become weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class PrefixBlock:
    """The kept slots of one sequence in one layer, head after head. Immutable; any number of rows may share it."""

    keys: Tensor
    """[S, D] contiguous: the slots of KV head 0, then of head 1, ..."""
    values: Tensor
    """[S, Dv] contiguous, in the same order."""
    offsets: Tensor
    """[H + 1] int64 on the CPU: head h owns slots offsets[h] to offsets[h + 1]."""
    later_starts: Tensor | None = None
    """[H] int64 on the CPU: head h reads its own slots from later_starts[h] on only; None: every head reads them all.
    Blocks of the same tensors with starts of their own are views: nothing is copied."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the three tensors fit together."""
        offsets = self.offsets
        if offsets.dtype != torch.int64 or offsets.device.type != "cpu" or offsets.ndim != 1 or not len(offsets):
            raise ValueError("prefix offsets must be an int64 CPU tensor [heads + 1]")
        if offsets[0] != 0 or offsets[-1] != len(self.keys) or bool((offsets.diff() < 0).any()):
            raise ValueError(f"prefix offsets {offsets.tolist()} do not partition {len(self.keys)} slots")
        if len(self.keys) != len(self.values) or self.keys.ndim != 2 or self.values.ndim != 2:
            raise ValueError("prefix keys [S, D] and values [S, Dv] must be matrices with the same number of slots")
        if not (self.keys.is_contiguous() and self.values.is_contiguous() and offsets.is_contiguous()):
            raise ValueError("prefix tensors must be contiguous")
        starts = self.later_starts
        if starts is None:
            return
        if starts.dtype != torch.int64 or starts.device.type != "cpu" or starts.shape != self.stops.shape:
            raise ValueError(f"prefix starts must be an int64 CPU tensor [{len(self.stops)}]")
        if not starts.is_contiguous() or bool((starts < offsets[:-1]).any() or (starts > self.stops).any()):
            raise ValueError(f"prefix starts {starts.tolist()} must lie inside the heads of {offsets.tolist()}")

    @property
    def starts(self) -> Tensor:
        """[H] int64: the first slot that head h reads."""
        return self.offsets[:-1] if self.later_starts is None else self.later_starts

    @property
    def stops(self) -> Tensor:
        """[H] int64: one past the last slot of head h."""
        return self.offsets[1:]


class TailSegments(NamedTuple):
    """The tokens of all rows that came after compression, in buffers with room for C tokens."""

    keys: Tensor
    """[R, H, C, D] contiguous."""
    values: Tensor
    """[R, H, C, Dv] contiguous."""
    lengths: Tensor
    """[R] int64 on the CPU: valid tokens per row, those of the current call included. May be updated in place."""


class AttentionSpec(NamedTuple):
    """How the model turns query-key products into weights."""

    scaling: float
    """Factor on q·k."""
    softcap: float | None = None
    """Logits are softcap·tanh(logit / softcap) where the model does so."""
    sinks: Tensor | None = None
    """[Hq] extra logits that take part in the softmax denominator only."""


class Layout(NamedTuple):
    """Sizes shared by all rows of a layer."""

    rows: int
    heads: int
    key_dim: int
    value_dim: int


def check_layout(prefixes: Sequence[PrefixBlock | None], tail: TailSegments) -> Layout:
    """The common sizes of prefixes and tail; ValueError names what does not fit."""
    if tail.keys.ndim != 4 or tail.values.ndim != 4 or tail.keys.shape[:3] != tail.values.shape[:3]:
        raise ValueError(f"tail keys {list(tail.keys.shape)} and values {list(tail.values.shape)} must be [R, H, C, D]")
    rows, heads, _, key_dim = tail.keys.shape
    layout = Layout(rows, heads, key_dim, tail.values.shape[-1])
    if not (tail.keys.is_contiguous() and tail.values.is_contiguous()):
        raise ValueError("tail keys and values must be contiguous")
    lengths = tail.lengths
    if lengths.dtype != torch.int64 or lengths.device.type != "cpu" or lengths.shape != (rows,):
        raise ValueError(f"tail lengths must be an int64 CPU tensor [{rows}]")
    if not lengths.is_contiguous():
        raise ValueError("tail lengths must be contiguous")
    if len(prefixes) != rows:
        raise ValueError(f"{len(prefixes)} prefixes for {rows} rows; give None for a row without a prefix")
    for prefix in {id(prefix): prefix for prefix in prefixes}.values():
        if prefix is not None:
            _check_prefix(prefix, tail, layout)
    return layout


def _check_prefix(prefix: PrefixBlock, tail: TailSegments, layout: Layout) -> None:
    shape = (len(prefix.offsets) - 1, prefix.keys.shape[1], prefix.values.shape[1])
    if shape != (layout.heads, layout.key_dim, layout.value_dim):
        raise ValueError(f"prefix has (heads, D, Dv) = {shape}, the tail {tuple(layout[1:])}")
    for tensor in (prefix.keys, prefix.values, tail.values):
        if tensor.dtype != tail.keys.dtype or tensor.device != tail.keys.device:
            raise ValueError(
                f"all keys and values of a layer must agree: {tensor.dtype} on {tensor.device} next to "
                f"{tail.keys.dtype} on {tail.keys.device}"
            )


def check_query(query: Tensor, layout: Layout, dtype: torch.dtype, sinks: Tensor | None) -> int:
    """Query heads per KV head of a query [R, Hq, Q, D]; ValueError when it fits neither layout nor sinks."""
    rows, query_heads, _, dim = query.shape
    if rows != layout.rows or dim != layout.key_dim or query_heads % layout.heads:
        raise ValueError(
            f"query {list(query.shape)} does not fit {layout.rows} rows, {layout.heads} KV heads and "
            f"head size {layout.key_dim}"
        )
    if query.dtype != dtype:
        raise ValueError(f"query is {query.dtype} but the cache holds {dtype}; cast one of them")
    if sinks is not None and len(sinks) != query_heads:
        raise ValueError(f"{len(sinks)} sinks for {query_heads} query heads")
    return query_heads // layout.heads
