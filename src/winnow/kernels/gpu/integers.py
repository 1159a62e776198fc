"""Integers of 8, 6, 4, 3 and 2 bits as they lie, a plane at a time: every byte is loaded once.

A byte has a number of each of 1 to 8 runs of neighbors. The numbers at one place in all bytes of a plane are a tile, or
those at several places where they are few, the numbers of a byte side by side. A tile is multiplied with its own
columns of the query, or summed into columns of its own: nothing is put in order but queries and sums. Planes are added
as products, so no number is ever joined.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.forms import ALIGNMENT, FIELDS
from winnow.kernels.gpu.launching import MOST_WARPS
from winnow.kernels.gpu.precision import PTX
from winnow.kernels.gpu.unpacking import unpacked

_PTX: tl.constexpr = tl.constexpr(PTX)
_FOUR_EACH: tl.constexpr = tl.constexpr(4 * 32 * MOST_WARPS)
"""Bytes of a tile of which every thread has four; those of fewer came out wrong on an H100."""
_DATA: tl.constexpr = tl.constexpr(FIELDS.index("data"))
_ALIGNMENT: tl.constexpr = tl.constexpr(ALIGNMENT)


@triton.jit
def numbers_of(FIELD: tl.constexpr, PLANE: tl.constexpr):
    """[B]: the number of a row that each byte of a plane holds at a place, and [B]: True where it does."""
    byte = tl.arange(0, PLANE.wide)
    return number_at(byte, FIELD, PLANE), byte < PLANE.size


@triton.jit
def columns_of(TILE: tl.constexpr, PLANE: tl.constexpr):
    """[K]: the numbers of a row that are the columns of a tile of a plane, and [K]: True where there is one."""
    column = tl.arange(0, PLANE.columns)
    if PLANE.runs > 1:
        run = column // 8 % PLANE.runs
        number = run * (PLANE.columns // PLANE.runs) + column // (8 * PLANE.runs) * 8 + column % 8
        there = number < PLANE.size
    else:
        byte = column // PLANE.together
        number = number_at(byte, TILE * PLANE.together + column % PLANE.together, PLANE)
        there = byte < PLANE.size
    return number, there


@triton.jit
def number_at(byte, field, PLANE: tl.constexpr):
    """The number of a row that a byte of a plane holds at a place."""
    number = byte + PLANE.start
    if PLANE.fields > 1:
        block = byte // PLANE.block
        # The bytes of the last block, which may be incomplete, are fewer.
        width = tl.minimum(PLANE.size - block * PLANE.block, PLANE.block)
        number = block * (PLANE.block * PLANE.fields) + field * width + byte % PLANE.block
    return number


@triton.jit
def plane_at(side, slots, inside, FORM: tl.constexpr, PLANE: tl.constexpr):
    """[N, K]: bytes of a plane of the rows of slots [N], or the numbers themselves; 0 beyond them and not inside."""
    data = tl.load(side + _DATA)
    data = data.to(tl.pointer_type(FORM.element if PLANE.bits == 16 else tl.uint8))
    if FORM.aligned:
        data = tl.multiple_of(data, _ALIGNMENT)
    byte = tl.arange(0, PLANE.wide)
    mask = inside[:, None] & (byte < PLANE.size)[None, :]
    return tl.load(data + slots[:, None] * FORM.row_length + (byte + PLANE.first)[None, :], mask=mask, other=0)


@triton.jit
def tile_of(
    plane, TILE: tl.constexpr, PLANE: tl.constexpr, N: tl.constexpr, PRODUCT: tl.constexpr, MOVED: tl.constexpr
):  # fmt: skip
    """[N, K]: the numbers of a tile, of the bytes [N, B] of a plane; in dtype PRODUCT where that has 16 bits."""
    if PLANE.bits == 16:
        numbers = plane
    elif PRODUCT.primitive_bitwidth == 16 and _PTX and PLANE.together <= 2 and N * PLANE.wide >= _FOUR_EACH:
        first: tl.constexpr = TILE * PLANE.together
        numbers = unpacked(plane, PLANE.bits, first, PLANE.signed, PRODUCT, MOVED)
        if PLANE.together == 2:
            second = unpacked(plane, PLANE.bits, first + 1, PLANE.signed, PRODUCT, MOVED)
            numbers = tl.reshape(tl.join(numbers, second), [N, PLANE.columns])
    else:
        numbers = _shifted(plane, TILE, PLANE, N)
    return numbers


@triton.jit
def _shifted(plane, TILE: tl.constexpr, PLANE: tl.constexpr, N: tl.constexpr):
    """[N, K]: the integers of a tile, signed or not, of the bytes [N, B] of a plane."""
    if PLANE.bits == 8:
        numbers = plane.to(tl.int8, bitcast=True) if PLANE.signed else plane
    elif PLANE.together == 1:
        if PLANE.signed:
            numbers = plane.to(tl.int8, bitcast=True)
            numbers = (numbers << (8 - PLANE.bits * (TILE + 1))) >> (8 - PLANE.bits)
        else:
            numbers = (plane >> (PLANE.bits * TILE)) & ((1 << PLANE.bits) - 1)
    else:
        # All numbers of a byte are in registers of the thread that loaded it.
        first = ((TILE * PLANE.together + tl.arange(0, PLANE.together)) * PLANE.bits)[None, None, :]
        if PLANE.signed:
            numbers = plane.to(tl.int8, bitcast=True)[:, :, None]
            numbers = (numbers << (8 - PLANE.bits - first).to(tl.int8)) >> (8 - PLANE.bits)
        else:
            numbers = (plane[:, :, None] >> first.to(tl.uint8)) & ((1 << PLANE.bits) - 1)
        numbers = tl.reshape(numbers, [N, PLANE.columns])
    return numbers
