"""Tiles of a window's queries, of keys, and of the logits between them.

Queries of a KV head are taken in tiles of HEADS query heads times WINDOW tokens.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.softmax import capped


@triton.jit
def queries_of_tile(
    queries, query_stride, token_stride, head, heads, group, window,
    DIM: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Queries [HEADS·WINDOW, WIDE] of a tile, their numbers g·w + i, their tokens i, and which of them exist."""
    row = tl.arange(0, HEADS * WINDOW)
    member, token = heads + row // WINDOW, window[0] + row % WINDOW
    present = (member < group) & (token < window[1])
    channel = tl.arange(0, WIDE)
    place = (head * group + member).to(tl.int64) * query_stride + token.to(tl.int64) * token_stride
    mask = present[:, None] & (channel < DIM)[None, :]
    query = tl.load(queries + place[:, None] + channel[None, :], mask=mask, other=0.0)
    return query, member * window[1] + token, token, present


@triton.jit
def keys_of(keys, head, key_stride, token_stride, tokens, inside, DIM: tl.constexpr, WIDE: tl.constexpr):
    """[KEYS, WIDE] keys of some tokens."""
    channel = tl.arange(0, WIDE)
    place = tl.cast(head, tl.int64) * key_stride + tokens.to(tl.int64) * token_stride
    mask = inside[:, None] & (channel < DIM)[None, :]
    return tl.load(keys + place[:, None] + channel[None, :], mask=mask, other=0.0)


@triton.jit
def logits_of(
    query, rows, absent, head, length, tokens, inside, positions, scaling, softcap,
    ABSENT: tl.constexpr, CAPPED: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """[ROWS, KEYS] logits, -inf where a key is not seen."""
    logits = tl.dot(query.to(PRODUCT), tl.trans(rows.to(PRODUCT)), input_precision="ieee")
    logits = capped(logits * scaling, softcap, CAPPED)
    visible = inside[None, :] & (tokens[None, :] <= positions[:, None])
    if ABSENT:
        gone = tl.load(absent + tl.cast(head, tl.int64) * length + tokens, mask=inside, other=1)
        visible = visible & (gone == 0)[None, :]
    return tl.where(visible, logits, float("-inf"))
