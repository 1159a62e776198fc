"""Partial results of the chunks of a head joined by log-sum-exp, turned back and normalized, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.softmax import finite
from winnow.kernels.gpu.turning import turned_rows


@triton.jit(do_not_specialize=["group", "tokens"])
def join_chunks(
    order, bounds, turned, maxima, totals, sums, sinks, output, row_stride, heads, group, tokens,
    SINKS: tl.constexpr, TURNED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_WIDE: tl.constexpr,
    ASKED: tl.constexpr, STEPS: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    """Output [R, Q, Hq, Dv] from maxima, totals [C, G·Q] and sums [C, G·Q, Dv] of chunks.

    order, bounds [R·H + 1]: the chunks of an owner are order[bounds[o]] … ; turned [C]: 1 where sums are of turned
    values.
    """
    owner = tl.program_id(0)
    asked = tl.program_id(1) * ASKED + tl.arange(0, ASKED)
    present = asked < group * tokens
    channel = tl.arange(0, VALUE_WIDE)
    mask = present[:, None] & (channel < VALUE_DIM)[None, :]
    maximum = tl.full([ASKED], float("-inf"), tl.float32)
    total = tl.zeros([ASKED], tl.float32)
    plain = tl.zeros([ASKED, VALUE_WIDE], tl.float32)
    rotated = tl.zeros([ASKED, VALUE_WIDE], tl.float32)
    if SINKS:
        # A logit without a value: there before any chunk.
        maximum = tl.load(sinks + (owner % heads) * group + asked // tokens, mask=present, other=0.0)
        total += 1.0
    for place in range(tl.load(bounds + owner), tl.load(bounds + owner + 1)):
        chunk = tl.load(order + place)
        line = chunk * group * tokens + asked
        its_maximum = tl.load(maxima + line, mask=present, other=float("-inf"))
        larger = tl.maximum(maximum, its_maximum)
        reference = finite(larger)
        mine, its = tl.exp(maximum - reference), tl.exp(its_maximum - reference)
        total = total * mine + its * tl.load(totals + line, mask=present, other=0.0)
        found = its[:, None] * tl.load(sums + line[:, None] * VALUE_DIM + channel[None, :], mask=mask, other=0.0)
        plain = plain * mine[:, None]
        if TURNED:
            turns = tl.load(turned + chunk) != 0
            rotated = rotated * mine[:, None] + tl.where(turns, found, 0.0)
            found = tl.where(turns, 0.0, found)
        plain += found
        maximum = larger
    if TURNED:
        plain += turned_rows(rotated, ASKED, VALUE_WIDE, STEPS, FACTOR)
    mean = plain / tl.where(total == 0.0, 1.0, total)[:, None]
    row, head = (owner // heads).to(tl.int64), owner % heads
    place = (asked % tokens) * heads * group + head * group + asked // tokens
    tl.store(output + row * row_stride + place[:, None] * VALUE_DIM + channel[None, :], mean, mask=mask)
