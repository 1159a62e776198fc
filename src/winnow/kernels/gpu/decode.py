"""Attention of the chunks of one form: one program for a chunk and a block of its queries.

Queries of a KV head are numbered g·Q + t, query head g of the group, token t. Softmax is taken on the way (Milakov and
Gimelshein 2018); a program leaves the maximum, the sum of weights and the weighted sum of values to `merging.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.chunks import ASKING, COLUMNS, ENTRY, FIRST, OWNER, STOP
from winnow.kernels.gpu.forms import WIDTH
from winnow.kernels.gpu.rows import rows_at

_COLUMNS: tl.constexpr = tl.constexpr(COLUMNS)
_ENTRY: tl.constexpr = tl.constexpr(ENTRY)
_ASKING: tl.constexpr = tl.constexpr(ASKING)
_OWNER: tl.constexpr = tl.constexpr(OWNER)
_FIRST: tl.constexpr = tl.constexpr(FIRST)
_STOP: tl.constexpr = tl.constexpr(STOP)
_WIDTH: tl.constexpr = tl.constexpr(WIDTH)


@triton.jit
def load_queries(
    queries, asking_stride, head_stride, token_stride, asking, head, asked, present, group, tokens,
    DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """[M, WIDE]: the queries `asked` [M] of a KV head, 0 beyond DIM and where not present."""
    channel = tl.arange(0, WIDE)
    place = (head * group + asked // tokens) * head_stride + (asked % tokens) * token_stride
    mask = present[:, None] & (channel < DIM)[None, :]
    return tl.load(queries + asking * asking_stride + place[:, None] + channel[None, :], mask=mask, other=0.0)


@triton.jit
def capped(logits, softcap, CAPPED: tl.constexpr):
    """softcap·tanh(logits / softcap), where the model does so."""
    if CAPPED:
        # tanh by exp, of what cannot overflow; libdevice is not to be had under the interpreter.
        folded = tl.exp(-2.0 * tl.abs(logits) / softcap)
        size = softcap * (1.0 - folded) / (1.0 + folded)
        logits = tl.where(logits < 0, -size, size)
    return logits


@triton.jit(do_not_specialize=["lines", "capacity", "group", "tokens"])
def attend_chunks(
    chunks, tables, queries, asking_stride, head_stride, token_stride, bias, lengths,
    maxima, totals, sums, lines, scaling, softcap, capacity, heads, group, tokens,
    KEYS: tl.constexpr, VALUES: tl.constexpr, BIASED: tl.constexpr, TAIL: tl.constexpr, CAPPED: tl.constexpr,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, WIDE: tl.constexpr, VALUE_WIDE: tl.constexpr,
    ASKED: tl.constexpr, SLOTS: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """Partial results of chunks, lines `lines` and on of maxima, totals [C, G·Q] and sums [C, G·Q, Dv]."""
    number = tl.program_id(0)
    chunk = chunks + number.to(tl.int64) * _COLUMNS
    entry, asking, owner = tl.load(chunk + _ENTRY), tl.load(chunk + _ASKING), tl.load(chunk + _OWNER)
    first, stop = tl.load(chunk + _FIRST), tl.load(chunk + _STOP)
    keys = tables + entry * 2 * _WIDTH
    values = keys + _WIDTH
    head = owner % heads
    asked = tl.program_id(1) * ASKED + tl.arange(0, ASKED)
    present = asked < group * tokens
    seen = tl.full([ASKED], 0, tl.int64) + stop
    shift = owner * 0
    if TAIL:
        # Of [R, H, C, *], one head of a row after another.
        shift = owner * capacity
        length = tl.load(lengths + owner // heads)
        stop = tl.minimum(stop, length)
        # Query t sees the tail up to its own token.
        seen = length - (tokens - 1 - asked % tokens)
    query = load_queries(
        queries, asking_stride, head_stride, token_stride, asking, head, asked, present, group, tokens, DIM, WIDE
    ).to(PRODUCT)
    constant = tl.zeros([ASKED], tl.float32)
    if BIASED:
        constant = tl.load(bias + (asking * heads + head) * group * tokens + asked, mask=present, other=0.0)
    maximum = tl.full([ASKED], float("-inf"), tl.float32)
    total = tl.zeros([ASKED], tl.float32)
    weighted = tl.zeros([ASKED, VALUE_WIDE], tl.float32)
    for begin in range(first, stop, SLOTS):
        slots = begin + tl.arange(0, SLOTS)
        inside = slots < stop
        rows = rows_at(keys, shift + slots, inside, KEYS, DIM, WIDE).to(PRODUCT)
        logits = tl.dot(query, tl.trans(rows), input_precision="ieee") + constant[:, None]
        logits = capped(logits * scaling, softcap, CAPPED)
        visible = inside[None, :] & (slots[None, :] < seen[:, None])
        logits = tl.where(visible, logits, float("-inf"))
        larger = tl.maximum(maximum, tl.max(logits, 1))
        reference = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp(logits - reference[:, None])
        fading = tl.exp(maximum - reference)
        total = total * fading + tl.sum(weights, 1)
        rows = rows_at(values, shift + slots, inside, VALUES, VALUE_DIM, VALUE_WIDE).to(PRODUCT)
        weighted = weighted * fading[:, None] + tl.dot(weights.to(PRODUCT), rows, input_precision="ieee")
        maximum = larger
    line = (lines + number).to(tl.int64) * group * tokens + asked
    tl.store(maxima + line, maximum, mask=present)
    tl.store(totals + line, total, mask=present)
    channel = tl.arange(0, VALUE_WIDE)
    mask = present[:, None] & (channel < VALUE_DIM)[None, :]
    tl.store(sums + line[:, None] * VALUE_DIM + channel[None, :], weighted, mask=mask)
