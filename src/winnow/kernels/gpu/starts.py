"""Beginnings of the rows of slots that kept channels of their own: of numbers, and of the signs of what is gone."""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.formats.pruned import STEP
from winnow.kernels.gpu.forms import FIELDS, RUNS
from winnow.kernels.gpu.masks import counts_in_runs, kept_counts, mask_bytes, of_runs

_DATA: tl.constexpr = tl.constexpr(FIELDS.index("data"))
_SIGNS: tl.constexpr = tl.constexpr(FIELDS.index("signs"))
_STARTS: tl.constexpr = tl.constexpr(FIELDS.index("starts"))
_RUNS: tl.constexpr = tl.constexpr(RUNS)
_STEP: tl.constexpr = tl.constexpr(STEP)
_HALF: tl.constexpr = tl.constexpr(1 << 16)


@triton.jit
def row_starts(side, first, counted, FORM: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr):
    """Pointers [U] to the numbers of N slots from `first` on, and to the signs of what is gone.

    Counted [U]: how many channels every run of a slot kept (`masks.py`). Rows are found by 32 bits from where the first
    one begins.
    """
    data = tl.load(side + _DATA).to(tl.pointer_type(FORM.element if FORM.bits == 16 else tl.uint8))
    signs = tl.load(side + _SIGNS).to(tl.pointer_type(tl.uint8))
    width: tl.constexpr = FORM.element.primitive_bitwidth // 8 if FORM.bits == 16 else 1
    if FORM.flat:
        tl.static_assert(_STEP * WIDE <= _HALF)
        # From where the 32 slots begin; none of them is missing before one that is looked at.
        starts = tl.load(side + _STARTS).to(tl.pointer_type(tl.int64)) + first // _STEP * 2
        sizes = _row_sizes(counted, FORM, N)
        places = tl.cumsum(sizes, 0) - sizes
        if N < _STEP:
            begin = first // _STEP * _STEP
            earlier = begin + tl.arange(0, (_STEP - N) * _RUNS) // _RUNS < first
            flags = mask_bytes(side, begin, earlier, FORM, WIDE, _STEP - N)
            # Of slots that are not earlier nothing is kept, and all signs are there.
            sizes = _row_sizes(counts_in_runs(flags)[1], FORM, _STEP - N)
            places += tl.sum(tl.where(begin + tl.arange(0, _STEP - N) < first, sizes, 0), 0)
        places = of_runs(places, N)
        data += tl.load(starts) // width + places % _HALF
        signs += tl.load(starts + 1) + places // _HALF
    else:
        slot = tl.arange(0, N * _RUNS) // _RUNS
        data = data + first * (FORM.kept_bytes // width) + slot * (FORM.kept_bytes // width)
        signs = signs + first * FORM.sign_bytes + slot * FORM.sign_bytes
    return data, signs


@triton.jit
def _row_sizes(counted, FORM: tl.constexpr, N: tl.constexpr):
    """int32 [N]: sizes of rows whose runs [U] kept so many numbers, and 2^16 times the bytes of the others' signs.

    In bytes, or in numbers where they are as they are. Those of several rows can be added.
    """
    count = kept_counts(counted, N)
    sizes = count
    if FORM.bits != 16:
        sizes = (count * FORM.low_bits + 7) // 8 + (count * FORM.high_bits + 7) // 8
    return sizes + (FORM.numbers - count + 7) // 8 * _HALF
