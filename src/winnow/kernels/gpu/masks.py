"""Masks of slots that kept channels of their own, 8 channels in a byte, and the places of kept numbers in a row.

A slot's mask is cut into runs of bytes, `forms.RUNS` of them, and all is done run by run: tiles [U] have a number for
every run of every slot, and a thread has one or a few of them. It goes through its run bit by bit, so that the place of
a bit is known when a kernel is compiled.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.constants import constant_function
from winnow.kernels.gpu.forms import FIELDS, RUNS

_MASKS: tl.constexpr = tl.constexpr(FIELDS.index("masks"))
_RUNS: tl.constexpr = tl.constexpr(RUNS)


@constant_function
def halvings(count: int) -> int:
    """Times that a power of two is halved until 1 is left."""
    return count.bit_length() - 1


@triton.jit
def of_runs(numbers, N: tl.constexpr):
    """[U]: numbers [N] of slots for each of their runs."""
    return tl.reshape(tl.broadcast_to(numbers[:, None], [N, _RUNS]), [N * _RUNS])


@triton.jit
def mask_bytes(side, first, inside, FORM: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr):
    """int32 [U] for every byte of a run: flags of channels that N slots from `first` on kept; none where not inside."""
    row_bytes: tl.constexpr = (FORM.numbers + 7) // 8
    run_bytes: tl.constexpr = WIDE // 8 // _RUNS
    masks = tl.load(side + _MASKS).to(tl.pointer_type(tl.uint8)) + first * row_bytes
    unit = tl.arange(0, N * _RUNS)
    start = unit % _RUNS * run_bytes
    place = unit // _RUNS * row_bytes + start
    flags = tl.tuple([])
    for byte in tl.static_range(run_bytes):
        mask = inside & (start + byte < row_bytes)
        flags += (tl.load(masks + (place + byte), mask=mask, other=0).to(tl.int32),)
    return flags


@triton.jit
def counts_in_runs(flags):
    """Counts of the bits of a run that are set before every bit, and int32 [U]: of all of them.

    The first is two numbers for every byte of a run, before its bits 0 to 3 and before 4 to 7: int32 [U] with a count
    in each of their bytes.
    """
    counts = tl.tuple([])
    counted = flags[0] * 0
    for byte in tl.static_range(len(flags)):
        for half in tl.static_range(2):
            # Copies of four bits 7 places apart: bit j of the j-th is the lowest bit of byte j.
            bits = (((flags[byte] >> (4 * half)) & 15) * 0x204081) & 0x01010101
            # Byte j of such a product is the sum of all bytes up to j.
            counts += (bits * 0x01010100 + counted * 0x01010101,)
            counted += (bits * 0x01010101) >> 24
    return counts, counted


@triton.jit
def ranks_of(counts, counted, WIDE: tl.constexpr, N: tl.constexpr):
    """int32 [U] for every bit of a run, and one past the last: how many bits of a row are set before it.

    Counts are those of `counts_in_runs`.
    """
    before = tl.reshape(tl.cumsum(tl.reshape(counted, [N, _RUNS]), 1), [N * _RUNS]) - counted
    ranks = tl.tuple([])
    for half in tl.static_range(len(counts)):
        for bit in tl.static_range(4):
            if WIDE <= 256:
                rank = ((counts[half] + before * 0x01010101) >> (8 * bit)) & 0xFF
            else:
                # No byte has room for the ranks of such a row.
                rank = ((counts[half] >> (8 * bit)) & 0xFF) + before
            ranks += (rank,)
    ranks += (before + counted,)
    return ranks


@triton.jit
def kept_counts(counted, N: tl.constexpr):
    """int32 [N]: channels that slots kept, by those of their runs [U]."""
    return tl.sum(tl.reshape(counted, [N, _RUNS]), 1)


@triton.jit
def side_by_side(tiles, N: tl.constexpr, WIDE: tl.constexpr):
    """[N, WIDE]: tiles [U], one for every bit of a run, as columns in the order of `forms.Plane.runs`."""
    for _ in tl.static_range(halvings(WIDE // _RUNS)):
        joined = tl.tuple([])
        for each in tl.static_range(len(tiles) // 2):
            joined += (tl.join(tiles[each], tiles[each + len(tiles) // 2]),)
        tiles = joined
    runs = tl.reshape(tiles[0], [N, _RUNS, WIDE // _RUNS // 8, 8])
    return tl.reshape(tl.permute(runs, (0, 2, 1, 3)), [N, WIDE])
