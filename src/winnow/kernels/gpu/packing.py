"""Selected slots as rows of small integers with scales: gathered, turned, rounded and packed in one launch.

Every step is that of `formats/entries.py` and `formats/hadamard.py`, in the same order and rounded alike, so that what
is stored is the same to the bit: butterflies instead of a matrix product, divisions that are rounded to nearest, and no
multiplication fused with an addition.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from winnow.kernels.formats.bits import BLOCK_BYTES, BLOCK_NUMBERS, PLANES, row_bytes
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.hadamard import hadamard_block

NUMBERS = 2048
"""Numbers of a program: what four warps hold in registers while they are turned."""
WARPS = 4
_TINY: tl.constexpr = tl.constexpr(torch.finfo(torch.float32).tiny)
_LARGEST_HALF: tl.constexpr = tl.constexpr(torch.finfo(torch.float16).max)
_ROUNDING: tl.constexpr = tl.constexpr(1.5 * 2.0**23)
"""Added to a number below 2^22 and taken off again, it leaves the nearest integer, of two the even one."""
_BLOCK: tl.constexpr = tl.constexpr(BLOCK_NUMBERS)
"""Heads are a multiple of it wide, so that no row ends within a block of bytes."""
_PLANE_BYTES: tl.constexpr = tl.constexpr(BLOCK_BYTES)


class Chosen(NamedTuple):
    """Slots of one layer that are about to be packed."""

    rows: Tensor
    """[H, N, D]"""
    head: Tensor
    """[S] int64"""
    token: Tensor
    """[S] int64"""


class Coordinates(NamedTuple):
    """Steps that rows go through before they are rounded."""

    means: Tensor | None
    """[H, D] in the dtype of the rows, subtracted first."""
    spreads: Tensor | None
    """[H, D], divided by next."""
    rotated: bool


@triton.jit
def _written(scale, ELEMENT: tl.constexpr):
    """fp32 scales as the model's dtype holds them; half to even, where the interpreter only cuts bfloat16 off."""
    if tl.bfloat16 == ELEMENT:
        bits = scale.to(tl.int32, bitcast=True)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    return scale.to(ELEMENT).to(tl.float32)


@triton.jit
def _butterflies(rows, SLOTS: tl.constexpr, WIDE: tl.constexpr, STEPS: tl.constexpr):
    """Rows [SLOTS, WIDE], every 2^STEPS neighboring channels after a Hadamard transform, but for the last product."""
    for step in tl.static_range(STEPS):
        pairs = tl.reshape(rows, [SLOTS * WIDE // (2 << step), 2, 1 << step])
        first, second = tl.split(tl.permute(pairs, (0, 2, 1)))
        joined = tl.permute(tl.join(first + second, first - second), (0, 2, 1))
        rows = tl.reshape(joined, [SLOTS, WIDE])
    return rows


@triton.jit
def _store_plane(
    data, slots, inside, integers, first, row_bytes,
    BITS: tl.constexpr, SLOTS: tl.constexpr, WIDE: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """The lowest BITS of integers [SLOTS, WIDE] in the bytes `first` and on of every row; see `formats/bits.py`."""
    SHARING: tl.constexpr = 8 // BITS
    LENGTH: tl.constexpr = min(_PLANE_BYTES, _BLOCK // SHARING)
    fields = tl.reshape(integers & ((1 << BITS) - 1), [SLOTS, WIDE // (SHARING * LENGTH), SHARING, LENGTH])
    shifts = tl.arange(0, SHARING) * BITS
    joined = tl.reshape(tl.sum(fields << shifts[None, None, :, None], 2), [SLOTS, WIDE // SHARING])
    byte = tl.arange(0, WIDE // SHARING)
    mask = inside[:, None] & (byte < DIM // SHARING)[None, :]
    tl.store(data + slots[:, None] * row_bytes + first + byte[None, :], joined.to(tl.uint8), mask=mask)


@triton.jit
def pack_slots(
    rows, head_stride, token_stride, heads, tokens, means, spreads, data, scales, slots, factor,
    CENTERED: tl.constexpr, SMOOTHED: tl.constexpr, STEPS: tl.constexpr, HALF: tl.constexpr, BITS: tl.constexpr,
    LOW: tl.constexpr, LOW_BYTES: tl.constexpr, ROW_BYTES: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    DIM: tl.constexpr, WIDE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """data uint8 [S, ROW_BYTES] and scales [S, GROUPS] of rows [H, N, D] at heads and tokens [S].

    The scale of a row with a number that is not finite is NaN.
    """
    slot = tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    inside = slot < slots
    channel = tl.arange(0, WIDE)
    mask = inside[:, None] & (channel < DIM)[None, :]
    head, token = tl.load(heads + slot, mask=inside, other=0), tl.load(tokens + slot, mask=inside, other=0)
    place = head * head_stride + token * token_stride
    numbers = tl.load(rows + place[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    unfit = tl.max((tl.abs(numbers) < float("inf")).to(tl.int32) ^ 1, 1)
    own = head[:, None] * DIM + channel[None, :]
    if CENTERED:
        numbers = numbers - tl.load(means + own, mask=mask, other=0.0).to(tl.float32)
    if SMOOTHED:
        numbers = tl.div_rn(numbers, tl.load(spreads + own, mask=mask, other=1.0).to(tl.float32))
    if STEPS > 0:
        numbers = _butterflies(numbers, SLOTS, WIDE, STEPS) * factor
    if HALF:
        # Sums of numbers near its end are beyond what a scale can be.
        numbers = tl.minimum(tl.maximum(numbers, -_LARGEST_HALF), _LARGEST_HALF)
    MOST: tl.constexpr = (1 << (BITS - 1)) - 1
    grouped = tl.reshape(numbers, [SLOTS, WIDE // GROUP, GROUP])
    largest = tl.max(tl.abs(grouped), 2)
    exact = tl.div_rn(largest, tl.full([SLOTS, WIDE // GROUP], MOST, tl.float32))
    rounded = _written(exact, scales.dtype.element_ty)
    group = tl.arange(0, WIDE // GROUP)
    told = tl.where((unfit != 0)[:, None], float("nan"), rounded).to(scales.dtype.element_ty)
    tl.store(scales + slot[:, None] * GROUPS + group[None, :], told, mask=inside[:, None] & (group < GROUPS)[None, :])
    usable = rounded >= _TINY
    inverse = tl.where(usable, tl.div_rn(tl.full(rounded.shape, 1.0, tl.float32), tl.where(usable, rounded, 1.0)), 0.0)
    # Clipped before it is rounded, which is the same, for the trick that rounds.
    clipped = tl.minimum(tl.maximum(grouped * inverse[:, :, None], -MOST), MOST)
    integers = tl.reshape(((clipped + _ROUNDING) - _ROUNDING).to(tl.int32), [SLOTS, WIDE])
    _store_plane(data, slot, inside, integers, 0, ROW_BYTES, LOW, SLOTS, WIDE, DIM)
    if LOW < BITS:
        _store_plane(data, slot, inside, integers >> LOW, LOW_BYTES, ROW_BYTES, BITS - LOW, SLOTS, WIDE, DIM)


def packed(chosen: Chosen, coordinates: Coordinates, bits: int, group: int) -> Entries:
    """Entries of the chosen slots, of 16 to 2 bits, with a scale for every `group` channels or, with 0, for all.

    Rows with a number that is not finite get a scale of NaN.
    """
    rows = chosen.rows.detach()
    if bits == 16:
        return Entries(rows[chosen.head, chosen.token], bits)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    slots, dim, device = len(chosen.token), rows.shape[-1], rows.device
    means, spreads, rotated = coordinates
    wide, block, low = triton.next_power_of_2(dim), hadamard_block(dim), PLANES.get(bits, (bits,))[0]
    groups = -(-dim // group) if group else 1
    data = torch.empty(slots, row_bytes(dim, bits), dtype=torch.uint8, device=device)
    scales = torch.empty(slots, groups, dtype=rows.dtype, device=device)
    together = max(1, NUMBERS // wide)
    if slots:
        pack_slots[(triton.cdiv(slots, together),)](
            *(rows, *rows.stride()[:2], chosen.head, chosen.token, means, spreads, data, scales, slots),
            1 / sqrt(block),
            CENTERED=means is not None,
            SMOOTHED=spreads is not None,
            STEPS=block.bit_length() - 1 if rotated else 0,
            HALF=rows.dtype == torch.float16,
            BITS=bits,
            LOW=low,
            LOW_BYTES=row_bytes(dim, low),
            ROW_BYTES=data.shape[1],
            GROUP=group or wide,
            GROUPS=groups,
            DIM=dim,
            WIDE=wide,
            SLOTS=together,
            num_warps=WARPS,
            enable_fp_fusion=False,
        )
    return Entries(data, bits, scales if group else scales[:, 0], group=group)
