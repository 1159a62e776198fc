"""Random sizes of entries that are gone, the same to the draw as `formats/draws.py` defines them."""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.formats.draws import DRAWS
from winnow.kernels.gpu.forms import FIELDS, RUNS
from winnow.kernels.gpu.masks import halvings

_MASKS: tl.constexpr = tl.constexpr(FIELDS.index("masks"))
_TABLE: tl.constexpr = tl.constexpr(FIELDS.index("draws"))
_SEED: tl.constexpr = tl.constexpr(FIELDS.index("seed"))
_DRAWS: tl.constexpr = tl.constexpr(DRAWS)
_RUNS: tl.constexpr = tl.constexpr(RUNS)


@triton.jit
def distributions(side, stats, first, inside, mean, FORM: tl.constexpr, N: tl.constexpr):
    """Distributions of N slots from `first` on, with statistics at pointers [U]: tiles [U] for `drawn_sizes`.

    The mean; offset and factor of offset + factor·z; the first z of the table, and how many are possible; the state of
    the hash.
    """
    table = tl.load(side + _TABLE).to(tl.pointer_type(tl.float32))
    offset = mean
    factor = mean
    if FORM.exponential:
        offset = mean * 0.0
    else:
        factor = tl.load(stats + 1, mask=inside, other=0.0).to(tl.float32)
    start = tl.zeros([N * _RUNS], tl.int32)
    possible = tl.full([N * _RUNS], _DRAWS, tl.int32)
    if FORM.truncated:
        # Nothing is possible without a factor.
        divisor = tl.where(factor > 0.0, factor, 1.0)
        if FORM.exponential:
            most = tl.load(stats + 1, mask=inside, other=0.0).to(tl.float32)
        else:
            most = tl.load(stats + 2, mask=inside, other=0.0).to(tl.float32)
            least = tl.div_rn(0.0 - offset, divisor)
            start = numbers_below(table, least, False)
        # Divided as torch does, so that a number on the edge is on the same side.
        largest = tl.div_rn(most - offset, divisor)
        stop = numbers_below(table, largest, True)
        possible = tl.where(factor > 0.0, tl.maximum(stop - start, 0), 0)
    return mean, offset, factor, start, possible, hashes_of_masks(side, first, inside, FORM, N)


@triton.jit
def numbers_below(table, limits, EQUAL: tl.constexpr):
    """int32 [U]: how many numbers of the table are below limits [U], or equal to them where that counts, too."""
    count = (limits * 0.0).to(tl.int32)
    for halving in tl.static_range(1, halvings(_DRAWS) + 1):
        count += next_numbers(table, count, _DRAWS >> halving, limits, EQUAL)
    return count + next_numbers(table, count, 1, limits, EQUAL)


@triton.jit
def next_numbers(table, count, STEP: tl.constexpr, limits, EQUAL: tl.constexpr):
    """int32 [U]: STEP where so many numbers after the first `count` [U] are below limits, or equal, else 0."""
    number = tl.load(table + count + (STEP - 1))
    fitting = number < limits
    if EQUAL:
        fitting = number <= limits
    return fitting.to(tl.int32) * STEP


@triton.jit
def drawn_sizes(side, drawn, channel):
    """fp32 [U]: offset + factor·z of channels [B]; the mean where no z is possible."""
    mean, offset, factor, start, possible, state = drawn
    table = tl.load(side + _TABLE).to(tl.pointer_type(tl.float32))
    hashed = mixed(state + (channel.to(tl.uint32) * 0x9E3779B9))
    chosen = tl.umulhi(hashed, possible.to(tl.uint32))
    number = tl.minimum(start + chosen.to(tl.int32), _DRAWS - 1)
    sizes = offset + factor * tl.load(table + number)
    return tl.where((possible > 0), sizes, mean)


@triton.jit
def hashes_of_masks(side, first, inside, FORM: tl.constexpr, N: tl.constexpr):
    """uint32 [U]: h of N slots from `first` on, made of the seed and the slot's mask.

    Channel j has mix(h + j·0x9e3779b9).
    """
    row_bytes: tl.constexpr = (FORM.numbers + 7) // 8
    masks = tl.load(side + _MASKS).to(tl.pointer_type(tl.uint8)) + first * row_bytes
    slot = tl.arange(0, N * _RUNS) // _RUNS
    masks += slot * row_bytes
    state = (slot * 0 + tl.load(side + _SEED)).to(tl.uint32)
    for word in tl.static_range((row_bytes + 3) // 4):
        bits = state * 0
        for byte in tl.static_range(4):
            if 4 * word + byte < row_bytes:
                bits |= tl.load(masks + (4 * word + byte), mask=inside, other=0).to(tl.uint32) << (8 * byte)
        state = mixed(state ^ bits)
    return state


@triton.jit
def mixed(state):
    """The finalizer of MurmurHash3."""
    state = state ^ (state >> 16)
    state = state * 0x85EBCA6B
    state = state ^ (state >> 13)
    state = state * 0xC2B2AE35
    return state ^ (state >> 16)
