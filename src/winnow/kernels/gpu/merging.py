"""Partial results of the chunks of a head joined by log-sum-exp, turned back and normalized, in one launch.

One program for a query: it has the results of many chunks on their way at a time, where one after another would wait
for memory as often as there are chunks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.softmax import finite
from winnow.kernels.gpu.turning import turned_rows


@triton.jit(do_not_specialize=["group", "tokens"])
def join_chunks(
    order, bounds, turned, maxima, totals, sums, sinks, output, row_stride, heads, group, tokens,
    SINKS: tl.constexpr, TURNED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_WIDE: tl.constexpr,
    CHUNKS: tl.constexpr, STEPS: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    """Output [R, Q, Hq, Dv] from maxima, totals [C, G·Q] and sums [C, G·Q, Dv] of chunks.

    order, bounds [R·H + 1]: the chunks of an owner are order[bounds[o]] … ; turned [C]: 1 where sums are of turned
    values.
    """
    queries = group * tokens
    owner, asked = tl.program_id(0) // queries, tl.program_id(0) % queries
    channel = tl.arange(0, VALUE_WIDE)
    inside = channel < VALUE_DIM
    maximum, total = float("-inf"), 0.0
    plain = tl.zeros([VALUE_WIDE], tl.float32)
    rotated = tl.zeros([VALUE_WIDE], tl.float32)
    if SINKS:
        # A logit without a value: there before any chunk.
        maximum = tl.load(sinks + (owner % heads) * group + asked // tokens)
        total = 1.0
    stop = tl.load(bounds + owner + 1)
    for first in range(tl.load(bounds + owner), stop, CHUNKS):
        place = first + tl.arange(0, CHUNKS)
        there = place < stop
        chunk = tl.load(order + place, mask=there, other=0)
        line = chunk * queries + asked
        its_maximum = tl.load(maxima + line, mask=there, other=float("-inf"))
        its_total = tl.load(totals + line, mask=there, other=0.0)
        mask = there[:, None] & inside[None, :]
        found = tl.load(sums + line[:, None] * VALUE_DIM + channel[None, :], mask=mask, other=0.0)
        larger = tl.maximum(maximum, tl.max(its_maximum, 0))
        reference = finite(larger)
        mine, its = tl.exp(maximum - reference), tl.exp(its_maximum - reference)
        total = total * mine + tl.sum(its * its_total, 0)
        found *= its[:, None]
        if TURNED:
            turns = (tl.load(turned + chunk, mask=there, other=0) != 0)[:, None]
            rotated = rotated * mine + tl.sum(tl.where(turns, found, 0.0), 0)
            found = tl.where(turns, 0.0, found)
        plain = plain * mine + tl.sum(found, 0)
        maximum = larger
    if TURNED:
        rows = turned_rows(tl.reshape(rotated, [1, VALUE_WIDE]), 1, VALUE_WIDE, STEPS, FACTOR)
        plain += tl.reshape(rows, [VALUE_WIDE])
    mean = plain / tl.where(total == 0.0, 1.0, total)
    row, head = (owner // heads).to(tl.int64), owner % heads
    place = (asked % tokens) * heads * group + head * group + asked // tokens
    tl.store(output + row * row_stride + place * VALUE_DIM + channel, mean, mask=inside)
