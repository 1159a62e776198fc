"""Rows of slots that kept channels of their own (SPARK): kept numbers where the mask says, stand-ins elsewhere."""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.formats.pruned import STEP
from winnow.kernels.gpu.drawing import drawn_sizes
from winnow.kernels.gpu.forms import FIELDS
from winnow.kernels.gpu.scales import scales_of_slots
from winnow.kernels.native_args import PER_SLOT

_DATA: tl.constexpr = tl.constexpr(FIELDS.index("data"))
_MASKS: tl.constexpr = tl.constexpr(FIELDS.index("masks"))
_STATS: tl.constexpr = tl.constexpr(FIELDS.index("stats"))
_SIGNS: tl.constexpr = tl.constexpr(FIELDS.index("signs"))
_NORMS: tl.constexpr = tl.constexpr(FIELDS.index("inverse_norms"))
_STARTS: tl.constexpr = tl.constexpr(FIELDS.index("starts"))
_ROW_BYTES: tl.constexpr = tl.constexpr(FIELDS.index("row_bytes"))
_SIGN_ROW_BYTES: tl.constexpr = tl.constexpr(FIELDS.index("sign_row_bytes"))
_STATS_WIDTH: tl.constexpr = tl.constexpr(FIELDS.index("stats_width"))
_STEP: tl.constexpr = tl.constexpr(STEP)
_PER_SLOT: tl.constexpr = tl.constexpr(PER_SLOT)


@triton.jit
def pruned_rows(side, slots, inside, head, FORM: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr):
    """fp32 [N, WIDE]: rows of slots [N] of a head; anything beyond the head's size, and where not inside."""
    kept = mask_of(side, slots, inside, FORM, WIDE, N)
    before = tl.cumsum(kept, 1)
    count = tl.sum(kept, 1)
    data, signs = row_starts(side, slots, inside, count, FORM, WIDE, N)
    numbers = kept_numbers(side, data, slots, inside, kept != 0, before - 1, count, FORM)
    return tl.where(kept != 0, numbers, stand_ins(side, signs, slots, inside, head, kept, before, FORM, WIDE, N))


@triton.jit
def mask_of(side, slots, inside, FORM: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr):
    """int32 [N, WIDE]: 1 where a channel was kept."""
    flags = mask_bytes(side, slots, inside, FORM, WIDE)
    bits = (flags[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
    return tl.reshape(bits, [N, WIDE])


@triton.jit
def mask_bytes(side, slots, inside, FORM: tl.constexpr, WIDE: tl.constexpr):
    """int32 [N, WIDE / 8]: the flags of kept channels, 8 in each."""
    masks = tl.load(side + _MASKS).to(tl.pointer_type(tl.uint8))
    byte = tl.arange(0, WIDE // 8)
    row_bytes: tl.constexpr = (FORM.numbers + 7) // 8
    mask = inside[:, None] & (byte < row_bytes)[None, :]
    return tl.load(masks + slots[:, None] * row_bytes + byte[None, :], mask=mask, other=0).to(tl.int32)


@triton.jit
def row_starts(side, slots, inside, count, FORM: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr):
    """int64 [N], [N]: where the numbers of slots that kept `count` [N] channels begin, and the signs of the others.

    In bytes, or in numbers where they are as they are.
    """
    width: tl.constexpr = FORM.element.primitive_bitwidth // 8 if FORM.bits == 16 else 1
    if FORM.flat:
        starts = tl.load(side + _STARTS).to(tl.pointer_type(tl.int64)) + slots // _STEP * 2
        data = tl.load(starts, mask=inside, other=0) // width
        signs = tl.load(starts + 1, mask=inside, other=0)
        # From where the 32 slots begin; none of them is missing before one that is looked at.
        sizes, gone = row_sizes(count, FORM)
        data += tl.cumsum(sizes, 0) - sizes
        signs += tl.cumsum(gone, 0) - gone
        if N < _STEP:
            first = tl.min(slots, 0)
            earlier = first // _STEP * _STEP + tl.arange(0, _STEP - N)
            sizes, gone = row_sizes(kept_counts(side, earlier, earlier < first, FORM, WIDE), FORM)
            data += tl.sum(tl.where(earlier < first, sizes, 0), 0)
            signs += tl.sum(tl.where(earlier < first, gone, 0), 0)
    else:
        data = slots * (tl.load(side + _ROW_BYTES) // width)
        signs = slots * tl.load(side + _SIGN_ROW_BYTES)
    return data, signs


@triton.jit
def row_sizes(count, FORM: tl.constexpr):
    """Sizes of rows of `count` [N] kept channels, as `row_starts` counts them, and bytes of their signs."""
    sizes = count
    if FORM.bits != 16:
        sizes = (count * FORM.low_bits + 7) // 8 + (count * FORM.high_bits + 7) // 8
    return sizes, (FORM.numbers - count + 7) // 8


@triton.jit
def kept_counts(side, slots, inside, FORM: tl.constexpr, WIDE: tl.constexpr):
    """int32 [N]: channels that slots kept."""
    bits = mask_bytes(side, slots, inside, FORM, WIDE)
    # By pairs of bits, fours, and the two halves of a byte.
    bits -= (bits >> 1) & 0x55
    bits = (bits & 0x33) + ((bits >> 2) & 0x33)
    return tl.sum((bits + (bits >> 4)) & 0x0F, 1)


@triton.jit
def kept_numbers(side, first, slots, inside, kept, rank, count, FORM: tl.constexpr):
    """fp32 [N, WIDE]: number `rank` of the rows that begin at first [N], where kept."""
    data = tl.load(side + _DATA)
    if FORM.bits == 16:
        data = data.to(tl.pointer_type(FORM.element))
        numbers = tl.load(data + first[:, None] + rank, mask=kept, other=0.0).to(tl.float32)
    else:
        data = data.to(tl.pointer_type(tl.uint8)) + first[:, None]
        found = plane_numbers(data, kept, rank, count[:, None], FORM.low_bits)
        if FORM.high_bits > 0:
            high = data + ((count * FORM.low_bits + 7) // 8)[:, None]
            found += plane_numbers(high, kept, rank, count[:, None], FORM.high_bits) << FORM.low_bits
        found = tl.where(found >= 1 << (FORM.bits - 1), found - (1 << FORM.bits), found)
        numbers = found.to(tl.float32) * scales_of_slots(side, slots, inside, FORM)[:, None]
    return numbers


@triton.jit
def plane_numbers(rows, kept, rank, count, BITS: tl.constexpr):
    """int32 [N, WIDE], unsigned: number `rank` of planes of `count` [N, 1] numbers that begin at rows [N, 1]."""
    fields: tl.constexpr = 8 // BITS
    bytes_of_block: tl.constexpr = 8 if BITS == 1 else 16
    byte = rank
    shift = rank * 0
    if BITS < 8:
        block = rank // (bytes_of_block * fields)
        inside = rank - block * (bytes_of_block * fields)
        left = count - block * (bytes_of_block * fields)
        width = tl.minimum((left + fields - 1) // fields, bytes_of_block)
        byte = block * bytes_of_block + inside
        for field in tl.static_range(1, fields):
            # Number `inside` of a block lies in byte inside % width, at place inside // width.
            beyond = (inside >= field * width).to(tl.int32)
            byte -= beyond * width
            shift += beyond * BITS
    loaded = tl.load(rows + byte, mask=kept, other=0).to(tl.int32)
    return (loaded >> shift) & ((1 << BITS) - 1)


@triton.jit
def stand_ins(side, signs, slots, inside, head, kept, before, FORM: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr):
    """fp32 [N, WIDE]: what entries are taken for that are gone; signs [N] is where a slot's signs begin."""
    channel = tl.arange(0, WIDE)
    sizes = tl.full([N, 1], FORM.fill, tl.float32)
    if FORM.recovery != "constant":
        stats = tl.load(side + _STATS).to(tl.pointer_type(FORM.element)) + slots * tl.load(side + _STATS_WIDTH)
        mean = tl.load(stats, mask=inside, other=0.0).to(tl.float32)
        sizes = mean[:, None]
        if FORM.random:
            sizes = drawn_sizes(side, stats, slots, inside, mean, FORM, WIDE, N)
    if FORM.normed:
        norms = tl.load(side + _NORMS).to(tl.pointer_type(tl.float32)) + head * FORM.numbers
        sizes = sizes * tl.load(norms + channel, mask=channel < FORM.numbers, other=0.0)[None, :]
    sizes = tl.broadcast_to(sizes, [N, WIDE])
    if FORM.signed:
        # Of the entries that are gone, the number that this one is.
        number = channel[None, :] - before
        gone = inside[:, None] & (kept == 0) & (channel < FORM.numbers)[None, :]
        flags = tl.load(side + _SIGNS).to(tl.pointer_type(tl.uint8)) + signs[:, None] + number // 8
        negative = (tl.load(flags, mask=gone, other=0).to(tl.int32) >> (number % 8)) & 1
        sizes = tl.where(negative != 0, -sizes, sizes)
    return sizes
