"""Sizes that prefixes, tail and query of a layer share; what does not fit together is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.formats import Block, Part, parts_of
from winnow.kernels.segments import TailSegments


class AskedSizes(NamedTuple):
    """Sizes of queries of a layer and of its outputs."""

    rows: int
    heads: int
    """KV heads."""
    query_heads: int | None
    """None: any multiple of the KV heads."""
    query_dim: int
    output_dim: int


class LayerSizes(NamedTuple):
    """Sizes shared by all rows of a layer."""

    rows: int
    heads: int
    key_dim: int
    value_dim: int

    def asked(self) -> AskedSizes:
        """Sizes of queries that meet keys, and of sums of values."""
        return AskedSizes(self.rows, self.heads, None, self.key_dim, self.value_dim)


def check_layer(prefixes: Sequence[Block | None], tail: TailSegments) -> LayerSizes:
    """The common sizes of prefixes and tail; ValueError names what does not fit."""
    if tail.keys.ndim != 4 or tail.values.ndim != 4 or tail.keys.shape[:3] != tail.values.shape[:3]:
        raise ValueError(f"tail keys {list(tail.keys.shape)} and values {list(tail.values.shape)} must be [R, H, C, D]")
    rows, heads, _, key_dim = tail.keys.shape
    sizes = LayerSizes(rows, heads, key_dim, tail.values.shape[-1])
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
        for part in parts_of(prefix) if prefix is not None else ():
            _check_part(part, tail, sizes)
    return sizes


def _check_part(part: Part, tail: TailSegments, sizes: LayerSizes) -> None:
    shape = (len(part.offsets) - 1, part.key_dim, part.value_dim)
    if shape != sizes[1:]:
        raise ValueError(f"prefix has (heads, D, Dv) = {shape}, the tail {tuple(sizes[1:])}")
    for dtype, device in ((part.dtype, part.device), (tail.values.dtype, tail.values.device)):
        if dtype != tail.keys.dtype or device != tail.keys.device:
            raise ValueError(
                f"all keys and values of a layer must agree: {dtype} on {device} next to "
                f"{tail.keys.dtype} on {tail.keys.device}"
            )


def check_query(query: Tensor, sizes: AskedSizes, dtype: torch.dtype, sinks: Tensor | None) -> int:
    """Query heads per KV head of a query [R, Hq, Q, D]; ValueError when it fits neither sizes nor sinks."""
    rows, query_heads, _, dim = query.shape
    heads_fit = query_heads % sizes.heads == 0 if sizes.query_heads is None else query_heads == sizes.query_heads
    if rows != sizes.rows or dim != sizes.query_dim or not heads_fit:
        raise ValueError(
            f"query {list(query.shape)} does not fit {sizes.rows} rows, {sizes.heads} KV heads and "
            f"head size {sizes.query_dim}"
        )
    if query.dtype != dtype:
        raise ValueError(f"query is {query.dtype} but the cache holds {dtype}; cast one of them")
    if sinks is not None and len(sinks) != query_heads:
        raise ValueError(f"{len(sinks)} sinks for {query_heads} query heads")
    return query_heads // sizes.heads
