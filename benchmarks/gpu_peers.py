"""Other ways to attend over the same slots on a GPU, as libraries offer them: references of `gpu.py`.

The library way to heads of different length is one "sequence" per (row, KV head), whose query heads are its queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gpu_clock import Run

PAGE = 32
"""Slots of a page; heads hold multiples of it."""
WORKSPACE = 128 << 20
"""Bytes that FlashInfer is given to work in, as its documentation does."""


class Slots(NamedTuple):
    """Dense keys and values of R·H heads, head after head, and the queries that ask them."""

    keys: Tensor
    """[S, D]"""
    values: Tensor
    """[S, D]"""
    counts: list[int]
    """Slots of each of the R·H heads."""
    queries: Tensor
    """[R·H, G, D]"""
    heads: int
    """H"""

    @property
    def scale(self) -> float:
        """Factor on q·k."""
        return 1 / math.sqrt(self.keys.shape[1])

    @property
    def even(self) -> bool:
        """True if all heads hold as many slots."""
        return len(set(self.counts)) == 1

    def bounds(self, counts: list[int]) -> Tensor:
        """int32 [n + 1]: where sequences of these lengths begin."""
        return torch.tensor([0, *counts]).cumsum(0).to(self.keys.device, torch.int32)


def sdpa(slots: Slots) -> Run | None:
    """torch's fused attention, the query group folded into the length axis; heads of the same length only."""
    if not slots.even:
        return None
    rows = len(slots.counts) // slots.heads
    shape = (rows, slots.heads, slots.counts[0], slots.keys.shape[1])
    keys, values = slots.keys.view(shape), slots.values.view(shape)
    queries = slots.queries.view(rows, slots.heads, -1, slots.keys.shape[1])
    return lambda: scaled_dot_product_attention(queries, keys, values, scale=slots.scale)


def varlen(slots: Slots) -> Run | None:
    """torch's own attention over sequences of different length."""
    if slots.keys.device.type != "cuda" or slots.keys.dtype == torch.float32:
        return None
    from torch.nn.attention.varlen import varlen_attn

    return _by_sequences(slots, lambda *args: varlen_attn(*args, scale=slots.scale))


def flash_attention(slots: Slots) -> Run | None:
    """flash-attn's, where it is installed."""
    if find_spec("flash_attn") is None:
        return None
    from flash_attn import flash_attn_varlen_func

    return _by_sequences(slots, lambda *args: flash_attn_varlen_func(*args, softmax_scale=slots.scale))


def _by_sequences(slots: Slots, attend: Callable[..., Any]) -> Run:
    """One sequence per (row, KV head): arguments as flash-attn orders them."""
    group = slots.queries.shape[1]
    asked, held = slots.bounds([group] * len(slots.counts)), slots.bounds(slots.counts)
    queries, keys, values = slots.queries.flatten(0, 1)[:, None], slots.keys[:, None], slots.values[:, None]
    longest = max(slots.counts)
    return lambda: attend(queries, keys, values, asked, held, group, longest)


def flex(slots: Slots) -> Run | None:
    """FlexAttention for one row, compiled for every length anew; heads of the same length only."""
    if not slots.even or slots.keys.device.type != "cuda" or len(slots.counts) > slots.heads:
        return None
    dim = slots.keys.shape[1]
    shape = (1, slots.heads, slots.counts[0], dim)
    keys, values = slots.keys.view(shape), slots.values.view(shape)
    queries = slots.queries.reshape(1, -1, 1, dim)
    return lambda: _compiled_flex()(queries, keys, values, scale=slots.scale, enable_gqa=True)


@cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flashinfer(slots: Slots, tensor_cores: bool = False) -> Run | None:
    """FlashInfer's batch decode, where it is installed: one request per (row, KV head), slots in pages as they lie."""
    if find_spec("flashinfer") is None or slots.keys.dtype == torch.float32:
        return None
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    (_, group, dim), device = slots.queries.shape, slots.keys.device
    pages = [count // PAGE for count in slots.counts]
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(WORKSPACE, dtype=torch.uint8, device=device), "NHD", use_tensor_cores=tensor_cores
    )
    last = torch.full((len(pages),), PAGE, dtype=torch.int32, device=device)
    indices = torch.arange(sum(pages), dtype=torch.int32, device=device)
    wrapper.plan(
        *(slots.bounds(pages), indices, last, group, 1, dim, PAGE),
        q_data_type=slots.queries.dtype,
        kv_data_type=slots.keys.dtype,
        sm_scale=slots.scale,
    )
    paged = tuple(each.view(-1, PAGE, 1, dim) for each in (slots.keys, slots.values))
    return lambda: wrapper.run(slots.queries, paged)


PEERS: dict[str, Callable[[Slots], Run | None]] = {
    "sdpa": sdpa,
    "varlen_attn": varlen,
    "FlexAttention": flex,
    "flash-attn": flash_attention,
    "FlashInfer": flashinfer,
    "FlashInfer, tensor cores": partial(flashinfer, tensor_cores=True),
}
