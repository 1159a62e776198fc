"""Stand-ins for entries that are gone: their sizes, by the slot's statistics and the channel's norm, and their signs.

Tiles [U] are those of `masks.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.drawing import distributions, drawn_sizes
from winnow.kernels.gpu.forms import FIELDS, RUNS

_STATS: tl.constexpr = tl.constexpr(FIELDS.index("stats"))
_NORMS: tl.constexpr = tl.constexpr(FIELDS.index("inverse_norms"))
_RUNS: tl.constexpr = tl.constexpr(RUNS)


@triton.jit
def recoveries(side, first, inside, FORM: tl.constexpr, N: tl.constexpr):
    """Tiles [U]: what is known of the sizes of entries that N slots from `first` on do not have."""
    if FORM.recovery == "constant":
        known = (tl.full([N * _RUNS], FORM.fill, tl.float32),)
    else:
        stats = tl.load(side + _STATS).to(tl.pointer_type(FORM.element)) + first * FORM.statistics
        stats += tl.arange(0, N * _RUNS) // _RUNS * FORM.statistics
        mean = tl.load(stats, mask=inside, other=0.0).to(tl.float32)
        known = (mean,)
        if FORM.random:
            known = distributions(side, stats, first, inside, mean, FORM, N)
    return known


@triton.jit
def stand_ins(side, known, head, channel, FORM: tl.constexpr):
    """fp32 [U]: sizes of entries of channels [U] that are gone, as `recoveries` know them."""
    sizes = known[0]
    if FORM.random:
        sizes = drawn_sizes(side, known, channel)
    if FORM.normed:
        norms = tl.load(side + _NORMS).to(tl.pointer_type(tl.float32)) + head * FORM.numbers
        sizes = sizes * tl.load(norms + channel, mask=channel < FORM.numbers, other=0.0)
    return sizes


@triton.jit
def sign_windows(rows, channel, ranks, count, inside, FORM: tl.constexpr, RUN: tl.constexpr):
    """uint32 [U] for every 32 of the RUN channels from `channel` [U] on: signs of what is gone of them.

    The first sign is the highest bit, the others follow from the lowest one on. Rows of signs begin at pointers [U];
    ranks [U] tell how many channels were kept before each, count [U] how many in all.
    """
    windows = tl.tuple([])
    if FORM.signed:
        stop = FORM.sign_bytes
        if FORM.flat:
            stop = (FORM.numbers - count + 7) // 8
        bytes_of_window: tl.constexpr = RUN // 8 if RUN < 32 else 4
        for start in tl.static_range(0, RUN, 32):
            gone = channel + start - ranks[start]
            byte = gone >> 3
            window = _signs_at(rows, byte + bytes_of_window, stop, inside).to(tl.uint64) << (8 * bytes_of_window)
            low = _signs_at(rows, byte, stop, inside)
            for each in tl.static_range(1, bytes_of_window):
                low |= _signs_at(rows, byte + each, stop, inside) << (8 * each)
            window = ((window | low) >> (gone & 7).to(tl.uint64)).to(tl.uint32)
            windows += ((window >> 1) | (window << 31),)
    return windows


@triton.jit
def _signs_at(rows, byte, stop, inside):
    """uint32 [U]: a byte each of rows of signs; 0 from byte `stop` on, and where not inside."""
    return tl.load(rows + byte, mask=inside & (byte < stop), other=0).to(tl.uint32)


@triton.jit
def signed(sizes, window):
    """fp32 [U]: sizes with the sign that is a window's highest bit."""
    return (sizes.to(tl.uint32, bitcast=True) ^ (window & 0x80000000)).to(tl.float32, bitcast=True)
