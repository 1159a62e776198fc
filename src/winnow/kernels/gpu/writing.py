"""Integers that a program holds, on their way into bytes: scaled and rounded as on a CPU, put into planes, stored."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from winnow.kernels.formats.entries import largest_integer
from winnow.kernels.formats.signed import lowest_integer
from winnow.kernels.gpu.forms import written_plane
from winnow.kernels.gpu.integers import numbers_of

_TINY: tl.constexpr = tl.constexpr(torch.finfo(torch.float32).tiny)
_ROUNDING: tl.constexpr = tl.constexpr(1.5 * 2.0**23)
"""Added to a number below 2^22 and taken off again, it leaves the nearest integer, of two the even one."""


def least_integer(bits: int, signed: bool) -> int:
    """The lowest integer that numbers become: with scales of `formats/signed.py` one more than with symmetric ones."""
    return lowest_integer(bits) if signed else -largest_integer(bits)


@triton.jit
def as_held(numbers, ELEMENT: tl.constexpr):
    """fp32 numbers as the model's dtype holds them; half to even, where the interpreter only cuts bfloat16 off."""
    if tl.bfloat16 == ELEMENT:
        bits = numbers.to(tl.int32, bitcast=True)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    return numbers.to(ELEMENT).to(tl.float32)


@triton.jit
def divided(numbers, DIVISOR: tl.constexpr):
    """Quotients, rounded to nearest."""
    return tl.div_rn(numbers, tl.full(numbers.shape, DIVISOR, tl.float32))


@triton.jit
def scales_of(numbers, AXIS: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr, ELEMENT: tl.constexpr):
    """Scales, as the model's dtype holds them, with which numbers along an axis become integers from LEAST to MOST.

    Where these are one more below zero than above, it is the one that the number of the largest size meets
    (`formats/signed.py`).
    """
    if LEAST < -MOST:
        least, largest = tl.min(numbers, AXIS), tl.max(numbers, AXIS)
        # A power of two, whose inverse is exact. Of two as large, the one below zero counts.
        scales = tl.where(largest > -least, largest, least) * (1.0 / LEAST)
    else:
        scales = divided(tl.max(tl.abs(numbers), AXIS), MOST)
    return as_held(scales, ELEMENT)


@triton.jit
def inverse(scales):
    """1 / s, and 0 where s is 0 or so small that its inverse is infinite."""
    usable = tl.abs(scales) >= _TINY
    return tl.where(usable, tl.div_rn(tl.full(scales.shape, 1.0, tl.float32), tl.where(usable, scales, 1.0)), 0.0)


@triton.jit
def rounded(numbers, LEAST: tl.constexpr, MOST: tl.constexpr):
    """int32: the nearest integers, of two the even one, from LEAST to MOST."""
    # Clipped before it is rounded, which is the same, for the trick that rounds.
    clipped = tl.minimum(tl.maximum(numbers, LEAST), MOST)
    return ((clipped + _ROUNDING) - _ROUNDING).to(tl.int32)


@triton.jit
def store_scales(
    scales, slots, inside, held, unfit, FORM: tl.constexpr, GROUPS: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Scales [SLOTS, WIDE], the first GROUPS of each, as rows [S, GROUPS]; NaN where a slot is unfit [SLOTS]."""
    group = tl.arange(0, WIDE)
    told = tl.where((unfit != 0)[:, None], float("nan"), held).to(FORM.element)
    tl.store(scales + slots[:, None] * GROUPS + group[None, :], told, mask=inside[:, None] & (group < GROUPS)[None, :])


@triton.jit
def store_integers(data, slots, inside, integers, FORM: tl.constexpr, WIDE: tl.constexpr, SLOTS: tl.constexpr):
    """Integers [SLOTS, WIDE] as rows [S, FORM.row_length] of bytes, plane by plane; see `formats/bits.py`."""
    channel = tl.arange(0, WIDE)
    # Bits of a byte that no number has are 0.
    integers = tl.where((channel < FORM.numbers)[None, :], integers, 0)
    rows = data + slots[:, None] * FORM.row_length
    for plane in tl.static_range(len(FORM.planes)):
        joined, byte = _plane_of(integers, WIDE, SLOTS, written_plane(FORM, plane))
        mask = inside[:, None] & (byte < FORM.planes[plane].size)[None, :]
        tl.store(rows + (FORM.planes[plane].first + byte)[None, :], joined.to(tl.uint8), mask=mask)
        integers = integers >> FORM.planes[plane].bits


@triton.jit
def _plane_of(integers, WIDE: tl.constexpr, SLOTS: tl.constexpr, PLANE: tl.constexpr):
    """[SLOTS, K], [K]: bytes of the lowest bits of integers [SLOTS, WIDE], and their places in the plane."""
    small = integers & ((1 << PLANE.bits) - 1)
    if PLANE.size % PLANE.block == 0:
        # Blocks are whole: the runs of neighbors in them are a dimension.
        runs = tl.reshape(small, [SLOTS, WIDE // (PLANE.fields * PLANE.block), PLANE.fields, PLANE.block])
        shifts = tl.arange(0, PLANE.fields) * PLANE.bits
        joined = tl.reshape(tl.sum(runs << shifts[None, None, :, None], 2), [SLOTS, WIDE // PLANE.fields])
        byte = tl.arange(0, WIDE // PLANE.fields)
    else:
        byte = tl.arange(0, PLANE.wide)
        joined = tl.full([SLOTS, PLANE.wide], 0, tl.int32)
        for field in tl.static_range(tl.constexpr(PLANE.fields)):
            number, there = numbers_of(field, PLANE)
            there = there & (number < WIDE)
            index = tl.broadcast_to(tl.where(there, number, 0)[None, :], [SLOTS, PLANE.wide])
            found = tl.where(there[None, :], tl.gather(small, index, 1), 0)
            joined |= found << (PLANE.bits * field)
    return joined, byte
