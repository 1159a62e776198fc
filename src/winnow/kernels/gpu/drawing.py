"""Random sizes of entries that are gone, the same to the draw as `formats/draws.py` defines them."""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.formats.draws import DRAWS
from winnow.kernels.gpu.forms import FIELDS

_MASKS: tl.constexpr = tl.constexpr(FIELDS.index("masks"))
_TABLE: tl.constexpr = tl.constexpr(FIELDS.index("draws"))
_SEED: tl.constexpr = tl.constexpr(FIELDS.index("seed"))
_DRAWS: tl.constexpr = tl.constexpr(DRAWS)


@triton.jit
def drawn_sizes(side, stats, slots, inside, mean, FORM: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr):
    """fp32 [N, WIDE]: offset + factor·z of slots with statistics at stats [N]; the mean where no z is possible."""
    table = tl.load(side + _TABLE).to(tl.pointer_type(tl.float32))
    offset = mean
    factor = mean
    if FORM.exponential:
        offset = mean * 0.0
    else:
        factor = tl.load(stats + 1, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros([N], tl.int32)
    possible = tl.full([N], _DRAWS, tl.int32)
    if FORM.truncated:
        # Nothing is possible without a factor.
        divisor = tl.where(factor > 0.0, factor, 1.0)
        known = tl.load(table + tl.arange(0, _DRAWS))[None, :]
        if FORM.exponential:
            most = tl.load(stats + 1, mask=inside, other=0.0).to(tl.float32)
        else:
            most = tl.load(stats + 2, mask=inside, other=0.0).to(tl.float32)
            least = tl.div_rn(0.0 - offset, divisor)
            first = tl.sum((known < least[:, None]).to(tl.int32), 1)
        # Divided as torch does, so that a number on the edge is on the same side.
        largest = tl.div_rn(most - offset, divisor)
        stop = tl.sum((known <= largest[:, None]).to(tl.int32), 1)
        possible = tl.where(factor > 0.0, tl.maximum(stop - first, 0), 0)
    chance = hashes(side, slots, inside, FORM, WIDE).to(tl.int64) * possible.to(tl.int64)[:, None]
    number = tl.minimum(first[:, None] + (chance >> 32), _DRAWS - 1)
    sizes = offset[:, None] + factor[:, None] * tl.load(table + number)
    return tl.where((possible > 0)[:, None], sizes, mean[:, None])


@triton.jit
def hashes(side, slots, inside, FORM: tl.constexpr, WIDE: tl.constexpr):
    """uint32 [N, WIDE]: mix(h + j·0x9e3779b9) for channel j; h is made of the seed and the slot's mask."""
    row_bytes: tl.constexpr = (FORM.numbers + 7) // 8
    masks = tl.load(side + _MASKS).to(tl.pointer_type(tl.uint8)) + slots * row_bytes
    state = (slots * 0 + tl.load(side + _SEED)).to(tl.uint32)
    for word in tl.static_range((row_bytes + 3) // 4):
        bits = state * 0
        for byte in tl.static_range(4):
            if 4 * word + byte < row_bytes:
                bits |= tl.load(masks + (4 * word + byte), mask=inside, other=0).to(tl.uint32) << (8 * byte)
        state = mixed(state ^ bits)
    channel = tl.arange(0, WIDE).to(tl.uint32) * 0x9E3779B9
    return mixed(state[:, None] + channel[None, :])


@triton.jit
def mixed(state):
    """The finalizer of MurmurHash3."""
    state = state ^ (state >> 16)
    state = state * 0x85EBCA6B
    state = state ^ (state >> 13)
    state = state * 0xC2B2AE35
    return state ^ (state >> 16)
