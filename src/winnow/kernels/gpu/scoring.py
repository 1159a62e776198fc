"""Attention that the last queries of a prompt pay to its keys, in sums over the queries of a head.

Two passes over the keys, in three launches, and never a matrix of probabilities: the largest logit and the sum of
weights of every query in chunks of keys; those joined; then what every key is paid. Keys are read once in a pass for
all queries of a tile, and no head of them is repeated. `score/window.py` is the definition.

Queries of a KV head are taken in tiles of TOGETHER query heads times WINDOW tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from winnow.kernels.gpu.forms import ELEMENTS
from winnow.kernels.gpu.precision import product_dtype
from winnow.kernels.gpu.softmax import capped, finite
from winnow.kernels.gpu.tiles import NARROWEST, tile_width

SMALLEST_CHUNK = 512
"""Keys of a program of the first pass, at least: what it leaves takes a hundredth of what it read."""
PROGRAMS = 2048
"""Programs of the first pass at most, so that a prompt all of whose queries are asked leaves no more either; enough to
keep every processor busy several times."""


class Launch(NamedTuple):
    """Sizes of a launch."""

    rows: int
    """Queries of a tile, at most."""
    keys: int
    """Keys that a program looks at together."""
    warps: int


LAUNCHES = {
    (16, 128): Launch(64, 64, 4),
    (16, 256): Launch(32, 64, 8),
    (32, 128): Launch(32, 32, 8),
    (32, 256): Launch(16, 32, 8),
}
"""By bits of what is multiplied and the width of a head, at most: what registers hold. Products of fp32 are no tensor
core's, and take more of them."""
STAGES = 2


@dataclass(frozen=True)
class Asked:
    """Queries and keys of one layer of one sequence, and which of them meet."""

    queries: Tensor
    """[Hq, w, D] of the last tokens."""
    keys: Tensor
    """[H, N, D], in the same dtype or another."""
    scaling: float
    softcap: float | None
    sinks: Tensor | None
    """[Hq]"""
    absent: Tensor | None
    """[H, N] bool"""
    visible: int
    """First keys that are attended to at all; a query sees none that come after its own."""


@triton.jit
def _tile(
    queries, query_stride, token_stride, head, heads, group, window,
    DIM: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Queries [HEADS·WINDOW, WIDE] of a tile, their numbers g·w + i, their tokens i, and which of them exist."""
    row = tl.arange(0, HEADS * WINDOW)
    member, token = heads + row // WINDOW, window[0] + row % WINDOW
    present = (member < group) & (token < window[1])
    channel = tl.arange(0, WIDE)
    place = (head * group + member).to(tl.int64) * query_stride + token * token_stride
    mask = present[:, None] & (channel < DIM)[None, :]
    query = tl.load(queries + place[:, None] + channel[None, :], mask=mask, other=0.0)
    return query, member * window[1] + token, token, present


@triton.jit
def _rows(keys, head, key_stride, token_stride, tokens, inside, DIM: tl.constexpr, WIDE: tl.constexpr):
    """[KEYS, WIDE] keys of some tokens."""
    channel = tl.arange(0, WIDE)
    place = head.to(tl.int64) * key_stride + tokens.to(tl.int64) * token_stride
    mask = inside[:, None] & (channel < DIM)[None, :]
    return tl.load(keys + place[:, None] + channel[None, :], mask=mask, other=0.0)


@triton.jit
def _logits(
    query, rows, absent, head, length, tokens, inside, positions, scaling, softcap,
    ABSENT: tl.constexpr, CAPPED: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """[ROWS, KEYS] logits, -inf where a key is not seen."""
    logits = tl.dot(query.to(PRODUCT), tl.trans(rows.to(PRODUCT)), input_precision="ieee")
    logits = capped(logits * scaling, softcap, CAPPED)
    visible = inside[None, :] & (tokens[None, :] <= positions[:, None])
    if ABSENT:
        gone = tl.load(absent + head.to(tl.int64) * length + tokens, mask=inside, other=1)
        visible = visible & (gone == 0)[None, :]
    return tl.where(visible, logits, float("-inf"))


@triton.jit(do_not_specialize=["visible", "first", "window", "chunk_keys"])
def normalize_chunks(
    queries, keys, absent, maxima, totals, query_stride, query_token_stride, key_stride, key_token_stride,
    scaling, softcap, length, visible, first, window, group, chunk_keys,
    ABSENT: tl.constexpr, CAPPED: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    HEADS: tl.constexpr, WINDOW: tl.constexpr, KEYS: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """maxima and totals [C, H, G·w] of chunks of keys."""
    chunk, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles = tl.cdiv(window, WINDOW)
    query, number, token, present = _tile(
        queries, query_stride, query_token_stride, head, tile // tiles * HEADS, group, (tile % tiles * WINDOW, window),
        DIM, WIDE, HEADS, WINDOW,
    )  # fmt: skip
    maximum = tl.full([HEADS * WINDOW], float("-inf"), tl.float32)
    total = tl.zeros([HEADS * WINDOW], tl.float32)
    # No query of the tile sees a key beyond its last one's.
    stop = tl.minimum(tl.minimum(chunk * chunk_keys + chunk_keys, visible), first + tile % tiles * WINDOW + WINDOW)
    for begin in range(chunk * chunk_keys, stop, KEYS):
        tokens = begin + tl.arange(0, KEYS)
        inside = tokens < visible
        rows = _rows(keys, head, key_stride, key_token_stride, tokens, inside, DIM, WIDE)
        logits = _logits(
            query, rows, absent, head, length, tokens, inside, first + token, scaling, softcap,
            ABSENT, CAPPED, PRODUCT,
        )  # fmt: skip
        larger = tl.maximum(maximum, tl.max(logits, 1))
        reference = finite(larger)
        total = total * tl.exp(maximum - reference) + tl.sum(tl.exp(logits - reference[:, None]), 1)
        maximum = larger
    line = (chunk * tl.num_programs(1) + head).to(tl.int64) * group * window + number
    tl.store(maxima + line, maximum, mask=present)
    tl.store(totals + line, total, mask=present)


@triton.jit(do_not_specialize=["chunks", "window"])
def join_normalizers(maxima, totals, sinks, chunks, rows, window, SINKS: tl.constexpr, BLOCK: tl.constexpr):
    """The first line of maxima and totals [C, rows] becomes the largest logit and the sum of weights of every row."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    present = row < rows
    maximum = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    if SINKS:
        # A logit without a key.
        maximum = tl.load(sinks + row // window, mask=present, other=0.0)
        total += 1.0
    for chunk in range(chunks):
        place = chunk * rows + row
        its = tl.load(maxima + place, mask=present, other=float("-inf"))
        larger = tl.maximum(maximum, its)
        reference = finite(larger)
        sums = tl.load(totals + place, mask=present, other=0.0)
        total = total * tl.exp(maximum - reference) + sums * tl.exp(its - reference)
        maximum = larger
    tl.store(maxima + row, finite(maximum), mask=present)
    tl.store(totals + row, tl.where(total == 0.0, 1.0, total), mask=present)


@triton.jit(do_not_specialize=["visible", "first", "window", "paid_keys"])
def pay_keys(
    queries, keys, absent, maxima, totals, paid, query_stride, query_token_stride, key_stride, key_token_stride,
    scaling, softcap, length, visible, first, window, group, paid_keys,
    ABSENT: tl.constexpr, CAPPED: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    HEADS: tl.constexpr, WINDOW: tl.constexpr, KEYS: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """paid [H, G, paid_keys]: what the queries of every head together pay to the first keys."""
    head = tl.program_id(1)
    tokens = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    inside = tokens < visible
    rows = _rows(keys, head, key_stride, key_token_stride, tokens, inside, DIM, WIDE)
    member = tl.arange(0, HEADS)
    for heads in range(0, group, HEADS):
        found = tl.zeros([HEADS, KEYS], tl.float32)
        # Queries before the first of these keys see none of them.
        unseeing = tl.maximum(tl.program_id(0) * KEYS - first, 0) // WINDOW * WINDOW
        for begin in range(unseeing, window, WINDOW):
            query, number, token, present = _tile(
                queries, query_stride, query_token_stride, head, heads, group, (begin, window),
                DIM, WIDE, HEADS, WINDOW,
            )  # fmt: skip
            logits = _logits(
                query, rows, absent, head, length, tokens, inside, first + token, scaling, softcap,
                ABSENT, CAPPED, PRODUCT,
            )  # fmt: skip
            line = head * group * window + number
            maximum = tl.load(maxima + line, mask=present, other=0.0)
            total = tl.load(totals + line, mask=present, other=1.0)
            shares = tl.where(present[:, None], tl.exp(logits - maximum[:, None]) / total[:, None], 0.0)
            found += tl.sum(tl.reshape(shares, [HEADS, WINDOW, KEYS]), 1)
        place = (head * group + heads + member).to(tl.int64) * paid_keys
        mask = (heads + member < group)[:, None] & (tokens < paid_keys)[None, :]
        tl.store(paid + place[:, None] + tokens[None, :], found, mask=mask)


def attention_paid(asked: Asked, keys: int) -> Tensor:
    """fp32 [H, G, keys]: what the queries together pay to the first `keys` keys."""
    heads, length, dim = asked.keys.shape
    group, window = asked.queries.shape[0] // heads, asked.queries.shape[1]
    queries, rows = (each if each.stride(-1) == 1 else each.contiguous() for each in (asked.queries, asked.keys))
    absent = None if asked.absent is None else asked.absent.contiguous().view(torch.uint8)
    product, wide = product_dtype(queries.dtype, rows.dtype), tile_width(dim)
    launch = LAUNCHES[(8 * product.itemsize, max(128, wide))]
    tokens, members = _tile_sizes(window, group, launch.rows)
    tiles = triton.cdiv(group, members) * triton.cdiv(window, tokens)
    chunk_keys = max(SMALLEST_CHUNK, triton.cdiv(asked.visible * heads * tiles, PROGRAMS * launch.keys) * launch.keys)
    chunks = max(1, triton.cdiv(asked.visible, chunk_keys))
    device = rows.device
    maxima, totals = torch.empty(2, chunks, heads * group * window, dtype=torch.float32, device=device)
    paid = torch.empty(heads, group, keys, dtype=torch.float32, device=device)
    there = (queries, rows, absent, maxima, totals)
    strides = (*queries.stride()[:2], *rows.stride()[:2])
    facts = (asked.scaling, asked.softcap or 0.0, length, asked.visible, length - window, window, group)
    compiled = {
        "ABSENT": absent is not None,
        "CAPPED": asked.softcap is not None,
        "DIM": dim,
        "WIDE": wide,
        "HEADS": members,
        "WINDOW": tokens,
        "KEYS": launch.keys,
        "PRODUCT": ELEMENTS[product],
        "num_warps": launch.warps,
        "num_stages": STAGES,
    }
    normalize_chunks[(chunks, heads, tiles)](*there, *strides, *facts, chunk_keys, **compiled)
    sinks = None if asked.sinks is None else asked.sinks.detach().to(device, torch.float32).contiguous()
    number = heads * group * window
    join_normalizers[(triton.cdiv(number, 128),)](
        *(maxima, totals, sinks, chunks, number, window), SINKS=sinks is not None, BLOCK=128
    )
    if keys:
        pay_keys[(triton.cdiv(keys, launch.keys), heads)](*there, paid, *strides, *facts, keys, **compiled)
    return paid


def _tile_sizes(window: int, group: int, rows: int) -> tuple[int, int]:
    """Tokens and query heads of a tile of so many rows at most, powers of two."""
    tokens = min(triton.next_power_of_2(window), rows)
    members = min(triton.next_power_of_2(group), rows // tokens)
    return tokens, max(members, NARROWEST // tokens, 1)
