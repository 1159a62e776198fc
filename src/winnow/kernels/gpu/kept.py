"""Numbers of the channels that slots kept, each found by its rank in a row. Tiles [U] are those of `masks.py`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def kept_numbers(rows, scales, kept, rank, count, other, FORM: tl.constexpr, PRODUCT: tl.constexpr):
    """[U] in dtype PRODUCT: numbers of a rank [U] in rows that begin at pointers [U], where kept; else fp32 `other`."""
    if FORM.bits == 16 and FORM.element == PRODUCT:
        # What is not loaded is there already: nothing is chosen afterwards.
        numbers = tl.load(rows + rank, mask=kept, other=other.to(PRODUCT))
    else:
        if FORM.bits == 16:
            found = tl.load(rows + rank, mask=kept, other=0.0).to(tl.float32)
        else:
            found = _integers(rows, kept, rank, count, FORM).to(tl.float32) * scales
        numbers = tl.where(kept, found, other).to(PRODUCT)
    return numbers


@triton.jit
def _integers(rows, kept, rank, count, FORM: tl.constexpr):
    """int32 [U]: integers of `FORM.bits` bits, by their rank in rows of `count` [U]; anything where not kept."""
    if FORM.bits == 8:
        found = tl.load(rows.to(tl.pointer_type(tl.int8), bitcast=True) + rank, mask=kept, other=0).to(tl.int32)
    else:
        found = _plane_numbers(rows, kept, rank, count, FORM.low_bits)
        if FORM.high_bits > 0:
            high = rows + (count * FORM.low_bits + 7) // 8
            found += _plane_numbers(high, kept, rank, count, FORM.high_bits) << FORM.low_bits
        found = tl.where(found >= 1 << (FORM.bits - 1), found - (1 << FORM.bits), found)
    return found


@triton.jit
def _plane_numbers(rows, kept, rank, count, BITS: tl.constexpr):
    """int32 [U], unsigned: number `rank` [U] of planes of `count` [U] numbers that begin at pointers [U]."""
    fields: tl.constexpr = 8 // BITS
    bytes_of_block: tl.constexpr = 8 if BITS == 1 else 16
    block = rank // (bytes_of_block * fields)
    inside = rank - block * (bytes_of_block * fields)
    left = count - block * (bytes_of_block * fields)
    width = tl.minimum((left + fields - 1) // fields, bytes_of_block)
    byte = block * bytes_of_block + inside
    shift = rank * 0
    for field in tl.static_range(1, fields):
        # Number `inside` of a block lies in byte inside % width, at place inside // width.
        beyond = (inside >= field * width).to(tl.int32)
        byte -= beyond * width
        shift += beyond * BITS
    loaded = tl.load(rows + byte, mask=kept, other=0).to(tl.int32)
    return (loaded >> shift) & ((1 << BITS) - 1)
