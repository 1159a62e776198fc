"""Selected slots as rows of small integers with scales: gathered, turned, rounded and packed in one launch.

Every step is that of `formats/entries.py` and `formats/hadamard.py`, in the same order and rounded alike, so that what
is stored is the same to the bit: butterflies instead of a matrix product, divisions that are rounded to nearest, and no
multiplication fused with an addition.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from winnow.kernels.formats.bits import row_bytes
from winnow.kernels.formats.entries import GROUP, Entries
from winnow.kernels.gpu.forms import ELEMENTS, Form
from winnow.kernels.gpu.gathering import Chosen, Coordinates, gathered, gathering
from winnow.kernels.gpu.tiles import tile_width
from winnow.kernels.gpu.writing import (
    as_held,
    divided,
    inverse,
    least_integer,
    rounded,
    scales_of,
    store_integers,
    store_scales,
)

NUMBERS = 2048
"""Numbers of a program: what four warps hold in registers while they are turned."""
WARPS = 4
RANGED_NUMBERS = 4096
"""The same where there are zeros, of eight warps: 32 slots of 128 channels; with half of both a few forms spill."""


@triton.jit
def copy_slots(
    rows, head_stride, token_stride, heads, tokens, columns, data, slots,
    ELEMENT: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """data [S, T]: the columns [H, T] that heads keep of rows [H, N, D] at heads and tokens [S], as they are."""
    slot = tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    inside = slot < slots
    numbers, _ = gathered(
        rows, head_stride, token_stride, heads, tokens, columns, None, None, slot, inside,
        True, False, False, 0, 1.0, False, DIM, WIDE, SLOTS,
    )  # fmt: skip
    channel = tl.arange(0, WIDE)
    mask = inside[:, None] & (channel < DIM)[None, :]
    tl.store(data + slot[:, None] * DIM + channel[None, :], numbers.to(ELEMENT), mask=mask)


@triton.jit
def pack_slots(
    rows, head_stride, token_stride, heads, tokens, columns, means, spreads, data, scales, slots,
    CHOSEN: tl.constexpr, CENTERED: tl.constexpr, SMOOTHED: tl.constexpr, STEPS: tl.constexpr, FACTOR: tl.constexpr,
    HALF: tl.constexpr, FORM: tl.constexpr, GROUP: tl.constexpr, LEAST: tl.constexpr,
    DIM: tl.constexpr, WIDE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """data uint8 [S, FORM.row_length] and scales [S, ceil(D / GROUP)] of rows [H, N, D] at heads and tokens [S].

    LEAST: the lowest integer. The scale of a row with a number that is not finite is NaN.
    """
    slot = tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    inside = slot < slots
    numbers, unfit = gathered(
        rows, head_stride, token_stride, heads, tokens, columns, means, spreads, slot, inside,
        CHOSEN, CENTERED, SMOOTHED, STEPS, FACTOR, HALF, DIM, WIDE, SLOTS,
    )  # fmt: skip
    MOST: tl.constexpr = (1 << (FORM.bits - 1)) - 1
    GROUPS: tl.constexpr = (DIM + GROUP - 1) // GROUP
    grouped = tl.reshape(numbers, [SLOTS, WIDE // GROUP, GROUP])
    held = scales_of(grouped, 2, LEAST, MOST, FORM.element)
    store_scales(scales, slot, inside, held, unfit, FORM, GROUPS, WIDE // GROUP)
    integers = rounded(grouped * inverse(held)[:, :, None], LEAST, MOST)
    store_integers(data, slot, inside, tl.reshape(integers, [SLOTS, WIDE]), FORM, WIDE, SLOTS)


@triton.jit
def pack_ranges(
    rows, head_stride, token_stride, heads, tokens, columns, means, spreads, data, scales, zeros, slots,
    CHOSEN: tl.constexpr, CENTERED: tl.constexpr, SMOOTHED: tl.constexpr, STEPS: tl.constexpr, FACTOR: tl.constexpr,
    HALF: tl.constexpr, FORM: tl.constexpr, TOGETHER: tl.constexpr, GROUP: tl.constexpr,
    DIM: tl.constexpr, WIDE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """data uint8 [S, FORM.row_length], scales and zeros [S / TOGETHER, ceil(D / GROUP)] of rows at heads and tokens.

    Numbers of TOGETHER slots and GROUP channels share a scale and a zero, one of the two being 1. The scales of slots
    with a number that is not finite are NaN.
    """
    slot = tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    inside = slot < slots
    numbers, unfit = gathered(
        rows, head_stride, token_stride, heads, tokens, columns, means, spreads, slot, inside,
        CHOSEN, CENTERED, SMOOTHED, STEPS, FACTOR, HALF, DIM, WIDE, SLOTS,
    )  # fmt: skip
    MOST: tl.constexpr = (1 << FORM.bits) - 1
    GROUPS: tl.constexpr = (DIM + GROUP - 1) // GROUP
    LINES: tl.constexpr = SLOTS // TOGETHER
    COLUMNS: tl.constexpr = WIDE // GROUP
    grouped = tl.reshape(numbers, [LINES, TOGETHER, COLUMNS, GROUP])
    column = tl.arange(0, COLUMNS)
    # The last group of channels may be short, and groups behind it are empty.
    there = (column[:, None] * GROUP + tl.arange(0, GROUP)[None, :] < DIM)[None, None, :, :]
    filled = (column < GROUPS)[None, :]
    least = tl.min(tl.min(tl.where(there, grouped, float("inf")), 3), 1)
    largest = tl.max(tl.max(tl.where(there, grouped, float("-inf")), 3), 1)
    zero = as_held(tl.where(filled, least, 0.0), FORM.element)
    held = as_held(divided(tl.maximum(tl.where(filled, largest, 0.0) - zero, 0.0), MOST), FORM.element)
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    place, mask = line[:, None] * GROUPS + column[None, :], (line < slots // TOGETHER)[:, None] & filled
    wrong = tl.max(tl.reshape(unfit, [LINES, TOGETHER]), 1)
    told = tl.where((wrong != 0)[:, None], float("nan"), held).to(FORM.element)
    tl.store(scales + place, told, mask=mask)
    tl.store(zeros + place, zero.to(FORM.element), mask=mask)
    shifted = (grouped - zero[:, None, :, None]) * inverse(held)[:, None, :, None]
    integers = rounded(shifted, 0, MOST)
    store_integers(data, slot, inside, tl.reshape(integers, [SLOTS, WIDE]), FORM, WIDE, SLOTS)


def packed(chosen: Chosen, coordinates: Coordinates, bits: int, group: int, signed: bool = False) -> Entries:
    """Entries of the chosen slots, of 16 to 2 bits, with a scale for every `group` channels or, with 0, for all.

    signed: scales are those of `formats/signed.py`, else those of `symmetric`. Rows with a number that is not finite
    get a scale of NaN.
    """
    chosen = chosen.readable()
    rows, head, token, columns = chosen
    if bits == 16:
        return Entries(rows[head, token] if columns is None else _copied(chosen), bits)
    slots, entries = len(token), room(chosen, bits, group)
    constants = gathering(chosen, coordinates, group)
    together = max(1, NUMBERS // int(constants["WIDE"]))
    if slots:
        pack_slots[(triton.cdiv(slots, together),)](
            *(rows, *rows.stride()[:2], head, token, columns, coordinates.means, coordinates.spreads),
            *(entries.data, entries.scales, slots),
            **constants,
            FORM=Form(ELEMENTS[rows.dtype], bits, chosen.width),
            GROUP=group or constants["WIDE"],
            LEAST=least_integer(bits, signed),
            SLOTS=together,
            num_warps=WARPS,
            enable_fp_fusion=False,
        )
    return entries


def room(chosen: Chosen, bits: int, group: int) -> Entries:
    """Entries of the chosen slots that have yet to be written: signed integers with scales."""
    slots, dim, device = len(chosen.token), chosen.width, chosen.rows.device
    data = torch.empty(slots, row_bytes(dim, bits), dtype=torch.uint8, device=device)
    of_slots = (slots, -(-dim // group)) if group else (slots,)
    scales = torch.empty(of_slots, dtype=chosen.rows.dtype, device=device)
    return Entries(data, bits, scales, group=group)


def _copied(chosen: Chosen) -> Tensor:
    """[S, T]: the columns that heads keep of the chosen slots."""
    rows, head, token, columns = chosen
    slots, wide = len(token), tile_width(chosen.width)
    data = torch.empty(slots, chosen.width, dtype=rows.dtype, device=rows.device)
    together = max(1, NUMBERS // wide)
    if slots:
        copy_slots[(triton.cdiv(slots, together),)](
            *(rows, *rows.stride()[:2], head, token, columns, data, slots),
            ELEMENT=ELEMENTS[rows.dtype],
            DIM=chosen.width,
            WIDE=wide,
            SLOTS=together,
            num_warps=WARPS,
        )
    return data


def ranged(chosen: Chosen, coordinates: Coordinates, bits: int, by_slots: bool) -> Entries:
    """Entries of the chosen slots, of 8 to 2 bits, with scales and zeros: KIVI's.

    by_slots: a scale of every channel for 32 slots, whose number is a multiple of 32; else of 32 channels of a slot.
    Slots with a number that is not finite get scales of NaN.
    """
    chosen = chosen.readable()
    rows, head, token, columns = chosen
    slots, dim, device = len(token), chosen.width, rows.device
    together, group = (GROUP, 1) if by_slots else (1, GROUP)
    constants = gathering(chosen, coordinates, group)
    form = Form(ELEMENTS[rows.dtype], bits, dim, zeros=True)
    data = torch.empty(slots, form.row_length, dtype=torch.uint8, device=device)
    scales, zeros = torch.empty(2, slots // together, -(-dim // group), dtype=rows.dtype, device=device)
    held = max(GROUP, RANGED_NUMBERS // int(constants["WIDE"]))
    if slots:
        pack_ranges[(triton.cdiv(slots, held),)](
            *(rows, *rows.stride()[:2], head, token, columns, coordinates.means, coordinates.spreads),
            *(data, scales, zeros, slots),
            **constants,
            FORM=form,
            TOGETHER=together,
            GROUP=group,
            SLOTS=held,
            num_warps=WARPS * held * int(constants["WIDE"]) // NUMBERS,
            enable_fp_fusion=False,
        )
    return Entries(data, bits, scales, zeros)
