"""Rows of slots that kept channels of their own (SPARK): kept numbers where the mask says, stand-ins elsewhere.

Four threads share a slot, as tensor cores take its numbers: no number changes threads on its way to a product of keys.
Tiles [U] are those of `masks.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.forms import RUNS
from winnow.kernels.gpu.kept import kept_numbers
from winnow.kernels.gpu.masks import counts_in_runs, kept_counts, mask_bytes, of_runs, ranks_of, side_by_side
from winnow.kernels.gpu.scales import scales_of_slots
from winnow.kernels.gpu.standing import recoveries, sign_windows, signed, stand_ins
from winnow.kernels.gpu.starts import row_starts

_RUNS: tl.constexpr = tl.constexpr(RUNS)


@triton.jit
def pruned_rows(
    side, first, slots, inside, head, FORM: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr, PRODUCT: tl.constexpr
):
    """[N, WIDE] in dtype PRODUCT: rows of slots [N] of a head, from slot `first` on; anything beyond the head's size,
    and where not inside.

    Columns are in the order that `forms.Plane.runs` says.
    """
    inside = of_runs(inside, N)
    flags = mask_bytes(side, first, inside, FORM, WIDE, N)
    counts, counted = counts_in_runs(flags)
    ranks = ranks_of(counts, counted, WIDE, N)
    data, signs = row_starts(side, first, counted, FORM, WIDE, N)
    known = recoveries(side, first, inside, FORM, N)
    count, scales = counted, counted
    if FORM.flat or FORM.bits < 8:
        count = of_runs(kept_counts(counted, N), N)
    if FORM.bits != 16:
        scales = scales_of_slots(side, of_runs(slots, N), inside, FORM)
    run: tl.constexpr = WIDE // _RUNS
    channel = tl.arange(0, N * _RUNS) % _RUNS * run
    windows = sign_windows(signs, channel, ranks, count, inside, FORM, run)
    window = counted
    tiles = tl.tuple([])
    for bit in tl.static_range(run):
        kept = ranks[bit + 1] != ranks[bit]
        other = stand_ins(side, known, head, channel + bit, FORM)
        if FORM.signed:
            if bit % 32 == 0:
                window = windows[bit // 32]
            other = signed(other, window)
            # The next sign, where one was taken.
            window = tl.where(kept, window, (window >> 1) | (window << 31))
        tiles += (kept_numbers(data, scales, kept, ranks[bit], count, other, FORM, PRODUCT),)
    return side_by_side(tiles, N, WIDE)
