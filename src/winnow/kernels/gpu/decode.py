"""Attention of the chunks of one form: one program for a chunk and a block of its queries.

Queries of a KV head are numbered g·Q + t, query head g of the group, token t. Softmax is taken on the way (Milakov and
Gimelshein 2018); a program leaves the maximum, the sum of weights and the weighted sum of values to `merging.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.chunks import ASKING, COLUMNS, ENTRY, FILLED_FROM, FIRST, OWNER, STOP
from winnow.kernels.gpu.forms import WIDTH
from winnow.kernels.gpu.queries import query_rows
from winnow.kernels.gpu.rows import added, nothing, prepared, products, written
from winnow.kernels.gpu.scales import shared_by
from winnow.kernels.gpu.softmax import capped, finite

_COLUMNS: tl.constexpr = tl.constexpr(COLUMNS)
_ENTRY: tl.constexpr = tl.constexpr(ENTRY)
_ASKING: tl.constexpr = tl.constexpr(ASKING)
_OWNER: tl.constexpr = tl.constexpr(OWNER)
_FIRST: tl.constexpr = tl.constexpr(FIRST)
_STOP: tl.constexpr = tl.constexpr(STOP)
_FILLED_FROM: tl.constexpr = tl.constexpr(FILLED_FROM)
_WIDTH: tl.constexpr = tl.constexpr(WIDTH)


@triton.jit(do_not_specialize=["lines", "group", "tokens", "later"])
def attend_chunks(
    chunks, tables, queries, asking_stride, head_stride, token_stride, bias, lengths,
    maxima, totals, sums, lines, scaling, softcap, heads, group, tokens, later,
    KEYS: tl.constexpr, VALUES: tl.constexpr, BIASED: tl.constexpr, TAIL: tl.constexpr, CAUSAL: tl.constexpr,
    CAPPED: tl.constexpr, IN_STEPS: tl.constexpr, VALUE_DIM: tl.constexpr, ASKED: tl.constexpr, SLOTS: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """Partial results of chunks, lines `lines` and on of maxima, totals [C, G·Q] and sums [C, G·Q, Dv].

    The tail holds the tokens of the queries, and `later` more behind them.
    """
    number = tl.program_id(0)
    chunk = chunks + number.to(tl.int64) * _COLUMNS
    entry, asking, owner = tl.load(chunk + _ENTRY), tl.load(chunk + _ASKING), tl.load(chunk + _OWNER)
    first, stop = tl.load(chunk + _FIRST), tl.load(chunk + _STOP)
    keys = tables + entry * 2 * _WIDTH
    values = keys + _WIDTH
    head = owner % heads
    asked = tl.program_id(1) * ASKED + tl.arange(0, ASKED)
    present = asked < group * tokens
    end = stop
    if TAIL:
        filled_from = tl.load(chunk + _FILLED_FROM)
        filled = filled_from + tl.load(lengths + owner // heads) - later
        # All new tokens see a prefix; query t sees the tail up to its own token.
        end = tl.where(filled_from < 0, stop + tokens, filled)
        stop = tl.minimum(stop, end)
    seen = end - (tokens - 1 - asked % tokens)
    rows = query_rows(queries, asking_stride, head_stride, token_stride, asking, head, asked, group, tokens)
    query = prepared(keys, rows, present, head, KEYS, PRODUCT)
    constant = tl.zeros([ASKED], tl.float32)
    if BIASED:
        constant = tl.load(bias + (asking * heads + head) * group * tokens + asked, mask=present, other=0.0)
    maximum = tl.full([ASKED], float("-inf"), tl.float32)
    total = tl.zeros([ASKED], tl.float32)
    weighted = nothing(VALUES, ASKED)
    begin_at = first
    if IN_STEPS:
        begin_at = first // SLOTS * SLOTS
    of_keys, of_values = shared_by(keys, begin_at, stop, KEYS, SLOTS), shared_by(values, begin_at, stop, VALUES, SLOTS)
    for begin in range(begin_at, stop, SLOTS):
        after = begin + SLOTS
        of_next_keys, of_next_values = (
            shared_by(keys, after, stop, KEYS, SLOTS),
            shared_by(values, after, stop, VALUES, SLOTS),
        )
        slots = begin + tl.arange(0, SLOTS)
        inside = tl.arange(0, SLOTS) < (stop - begin).to(tl.int32)
        logits = products(keys, query, of_keys, begin, slots, inside, head, KEYS, ASKED, SLOTS, PRODUCT)
        logits = capped((logits + constant[:, None]) * scaling, softcap, CAPPED)
        visible = inside
        if IN_STEPS:
            visible = visible & (slots >= first)
        visible = visible[None, :]
        if CAUSAL:
            visible = visible & (slots[None, :] < seen[:, None])
        logits = tl.where(visible, logits, float("-inf"))
        larger = tl.maximum(maximum, tl.max(logits, 1))
        reference = finite(larger)
        weights = tl.exp(logits - reference[:, None])
        fading = tl.exp(maximum - reference)
        total = total * fading + tl.sum(weights, 1)
        weighted = added(
            values, weighted, fading, weights, of_values, begin, slots, inside, head, VALUES, SLOTS, PRODUCT
        )
        maximum = larger
        of_keys, of_values = of_next_keys, of_next_values
    line = (lines + number).to(tl.int64) * group * tokens + asked
    tl.store(maxima + line, maximum, mask=present)
    tl.store(totals + line, total, mask=present)
    written(sums + line * VALUE_DIM, weighted, present, VALUES)
