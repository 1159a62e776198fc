"""Scales of integers, and zeros: of a slot, of a channel in 32 slots (keys of KIVI), of neighboring channels of a slot.

The first never meets a number: logits and weights are multiplied instead, so that integers go into products exactly.
Scales and zeros are few numbers, for which a program would wait as long as for a tile; so those of the next slots are
loaded while these are looked at (`shared_by`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.formats.entries import GROUP
from winnow.kernels.gpu.forms import FIELDS, tiled_plane
from winnow.kernels.gpu.integers import columns_of
from winnow.kernels.native_args import GROUPED, PER_SLOT

_SCALES: tl.constexpr = tl.constexpr(FIELDS.index("scales"))
_ZEROS: tl.constexpr = tl.constexpr(FIELDS.index("zeros"))
_GROUP: tl.constexpr = tl.constexpr(GROUP)
_PER_SLOT: tl.constexpr = tl.constexpr(PER_SLOT)
_GROUPED: tl.constexpr = tl.constexpr(GROUPED)


@triton.jit
def shared_by(side, begin, stop, FORM: tl.constexpr, N: tl.constexpr):
    """Scales, then zeros, of up to N slots from `begin` on, as they lie; none where numbers have none.

    One tile where slots have a scale each, [N]; else one for each tile of numbers, and zeros for those of lower bits: a
    number in two planes has its zero once.
    """
    found = tl.tuple([])
    if FORM.scaling == _PER_SLOT and not FORM.masked:
        slots = begin + tl.arange(0, N)
        scales = tl.load(side + _SCALES).to(tl.pointer_type(FORM.element))
        found += (tl.load(scales + slots, mask=slots < stop, other=0.0),)
    elif FORM.scaled_by_channel and not FORM.masked:
        for plane in tl.static_range(len(FORM.tiled)):
            for each in tl.static_range(tl.constexpr(FORM.tiled[plane].tiles)):
                found += (_of_tile(side + _SCALES, begin, stop, each, FORM, tiled_plane(FORM, plane), N),)
        for plane in tl.static_range(len(FORM.tiled)):
            if FORM.zeros and FORM.tiled[plane].worth == 1:
                for each in tl.static_range(tl.constexpr(FORM.tiled[plane].tiles)):
                    found += (_of_tile(side + _ZEROS, begin, stop, each, FORM, tiled_plane(FORM, plane), N),)
    return found


@triton.jit
def _of_tile(place, begin, stop, TILE: tl.constexpr, FORM: tl.constexpr, PLANE: tl.constexpr, N: tl.constexpr):
    """Scales or zeros that numbers of a tile share: of columns in 32 slots, [N / 32, K], or of slots and channels."""
    shared = tl.load(place).to(tl.pointer_type(FORM.element))
    if FORM.scaling == _GROUPED:
        number, there = columns_of(TILE, PLANE)
        group = begin // _GROUP + tl.arange(0, N // _GROUP)
        mask = (group * _GROUP < stop)[:, None] & (there & (number < FORM.numbers))[None, :]
        found = tl.load(shared + group[:, None] * FORM.numbers + number[None, :], mask=mask, other=0.0)
    else:
        slots = begin + tl.arange(0, N)
        inside, row = slots < stop, shared + slots[:, None] * FORM.groups
        if PLANE.even:
            # Loaded once for a block of bytes.
            blocks: tl.constexpr = PLANE.wide // PLANE.block
            field = TILE * PLANE.together + tl.arange(0, PLANE.together)
            first = (tl.arange(0, blocks)[:, None] * PLANE.fields + field[None, :]) * PLANE.block
            group = ((first + PLANE.start) // FORM.group)[None, :, :]
            found = tl.load(row[:, :, None] + group, mask=inside[:, None, None] & (group < FORM.groups), other=0.0)
        else:
            number, there = columns_of(TILE, PLANE)
            there = there & (number < FORM.numbers)
            found = tl.load(row + (number // FORM.group)[None, :], mask=inside[:, None] & there[None, :], other=0.0)
    return found


@triton.jit
def scaled_numbers(
    numbers, shared, TILE: tl.constexpr, FORM: tl.constexpr, PLANE: tl.constexpr, N: tl.constexpr, PRODUCT: tl.constexpr
):  # fmt: skip
    """The numbers [N, K] of a tile of a plane, by scales and zeros of their channels, in dtype PRODUCT."""
    scale = _spread(shared[PLANE.before + TILE], FORM, PLANE, N).to(PRODUCT)
    numbers = numbers.to(PRODUCT)
    if FORM.zeros and PLANE.worth == 1:
        # Rounded once.
        zero = _spread(shared[FORM.first_zeros + PLANE.before + TILE], FORM, PLANE, N).to(PRODUCT)
        scaled = tl.fma(numbers, scale, zero)
    else:
        scaled = numbers * scale
    return scaled


@triton.jit
def _spread(found, FORM: tl.constexpr, PLANE: tl.constexpr, N: tl.constexpr):
    """[N, K]: for every number of a tile what it shares with others."""
    if FORM.scaling == _GROUPED:
        whole = tl.broadcast_to(found[:, None, :], [N // _GROUP, _GROUP, PLANE.columns])
        tile = tl.reshape(whole, [N, PLANE.columns])
    elif PLANE.even:
        blocks: tl.constexpr = PLANE.wide // PLANE.block
        whole = tl.broadcast_to(found[:, :, None, :], [N, blocks, PLANE.block, PLANE.together])
        tile = tl.reshape(whole, [N, PLANE.columns])
    else:
        tile = found
    return tile


@triton.jit
def scales_of_slots(side, slots, inside, FORM: tl.constexpr):
    """fp32 [N]: scales of slots that have one each."""
    scales = tl.load(side + _SCALES).to(tl.pointer_type(FORM.element))
    return tl.load(scales + slots, mask=inside, other=0.0).to(tl.float32)
