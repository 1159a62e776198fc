"""Attention that every key is paid by the queries of a window, in numbers of a key: the second pass over the keys.

A share is a query's attention to a key, exp(logit - largest)/total. It is there in a program's registers only.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.window_tiles import keys_of, logits_of, queries_of_tile

SHARES, SQUARES, ENTROPY, LARGEST = range(4)
"""A number of a key and a query head: Σ a over the queries, Σ a², Σ -a·ln a, or the largest a."""
_SQUARES: tl.constexpr = tl.constexpr(SQUARES)
_ENTROPY: tl.constexpr = tl.constexpr(ENTROPY)
_LARGEST: tl.constexpr = tl.constexpr(LARGEST)


@triton.jit
def shares_of(
    queries, rows, absent, maxima, totals, weights, query_stride, token_stride, tokens, inside,
    scaling, softcap, length, first, window, group, since, head, heads,
    ABSENT: tl.constexpr, CAPPED: tl.constexpr, WEIGHED: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    HEADS: tl.constexpr, WINDOW: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """[HEADS·WINDOW, KEYS]: shares of the queries of a tile; 0 for those that do not exist or come before `since`."""
    query, number, token, present = queries_of_tile(
        queries, query_stride, token_stride, head, heads, group, window, DIM, WIDE, HEADS, WINDOW
    )
    logits = logits_of(
        query, rows, absent, head, length, tokens, inside, first + token, scaling, softcap, ABSENT, CAPPED, PRODUCT
    )
    line = head * group * window[1] + number
    maximum = tl.load(maxima + line, mask=present, other=0.0)
    total = tl.load(totals + line, mask=present, other=1.0)
    shares = tl.exp(logits - maximum[:, None]) / total[:, None]
    if WEIGHED:
        shares *= tl.load(weights + token, mask=present, other=0.0)[:, None]
    return tl.where((present & (token >= since))[:, None], shares, 0.0)


@triton.jit(do_not_specialize=["visible", "first", "window", "since", "paid_keys"])
def pay_keys(
    queries, keys, absent, maxima, totals, weights, paid, query_stride, query_token_stride, key_stride,
    key_token_stride, scaling, softcap, length, visible, first, window, group, since, paid_keys,
    ABSENT: tl.constexpr, CAPPED: tl.constexpr, WEIGHED: tl.constexpr, WHAT: tl.constexpr, DIM: tl.constexpr,
    WIDE: tl.constexpr, HEADS: tl.constexpr, WINDOW: tl.constexpr, KEYS: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """paid [H, G, paid_keys]: what the queries of every head from number `since` on pay to the first keys."""
    head = tl.program_id(1)
    tokens = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    inside = tokens < visible
    rows = keys_of(keys, head, key_stride, key_token_stride, tokens, inside, DIM, WIDE)
    member = tl.arange(0, HEADS)
    # Queries before the first of these keys see none of them.
    unseeing = tl.maximum(tl.program_id(0) * KEYS - first, since) // WINDOW * WINDOW
    for heads in range(0, group, HEADS):
        found = tl.zeros([HEADS, KEYS], tl.float32)
        for begin in range(unseeing, window, WINDOW):
            shares = shares_of(
                queries, rows, absent, maxima, totals, weights, query_stride, query_token_stride, tokens, inside,
                scaling, softcap, length, first, (begin, window), group, since, head, heads,
                ABSENT, CAPPED, WEIGHED, DIM, WIDE, HEADS, WINDOW, PRODUCT,
            )  # fmt: skip
            if WHAT == _SQUARES:
                shares = shares * shares
            if WHAT == _ENTROPY:
                shares = -shares * tl.log(tl.where(shares > 0.0, shares, 1.0))
            by_head = tl.reshape(shares, [HEADS, WINDOW, KEYS])
            if WHAT == _LARGEST:
                found = tl.maximum(found, tl.max(by_head, 1))
            else:
                found += tl.sum(by_head, 1)
        place = (head * group + heads + member).to(tl.int64) * paid_keys
        mask = (heads + member < group)[:, None] & (tokens < paid_keys)[None, :]
        tl.store(paid + place[:, None] + tokens[None, :], found, mask=mask)


@triton.jit(do_not_specialize=["visible", "first", "window", "since", "paid_keys"])
def pay_keys_most(
    queries, keys, absent, maxima, totals, columns, paid, query_stride, query_token_stride, key_stride,
    key_token_stride, scaling, softcap, length, visible, first, window, group, since, paid_keys, all_heads,
    ABSENT: tl.constexpr, CAPPED: tl.constexpr, LISTED: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    HEADS: tl.constexpr, WINDOW: tl.constexpr, KEYS: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """paid [paid_keys]: sums over the tokens from number `since` on, each by the query head that pays a key most.

    columns int32 [H, paid_keys], where LISTED: which of a head's keys each of them is, -1 for none.
    """
    listed = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    column, inside = listed, listed < visible
    found = tl.zeros([KEYS], tl.float32)
    unseeing = since // WINDOW * WINDOW
    if not LISTED:
        # Queries before the first of these keys see none of them.
        unseeing = tl.maximum(tl.program_id(0) * KEYS - first, since) // WINDOW * WINDOW
    for begin in range(unseeing, window, WINDOW):
        most = tl.zeros([WINDOW, KEYS], tl.float32)
        tiles = tl.cdiv(group, HEADS)
        # One loop, so that no keys stay in registers from tile to tile: there is no room for them.
        for tile in range(all_heads * tiles):
            head, heads = tile // tiles, tile % tiles * HEADS
            if LISTED:
                column = tl.load(columns + head * paid_keys + listed, mask=listed < paid_keys, other=-1)
                inside = column >= 0
            rows = keys_of(keys, head, key_stride, key_token_stride, column, inside, DIM, WIDE)
            shares = shares_of(
                queries, rows, absent, maxima, totals, None, query_stride, query_token_stride, column, inside,
                scaling, softcap, length, first, (begin, window), group, since, head, heads,
                ABSENT, CAPPED, False, DIM, WIDE, HEADS, WINDOW, PRODUCT,
            )  # fmt: skip
            most = tl.maximum(most, tl.max(tl.reshape(shares, [HEADS, WINDOW, KEYS]), 0))
        found += tl.sum(most, 0)
    tl.store(paid + listed, found, mask=listed < paid_keys)
