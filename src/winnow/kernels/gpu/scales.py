"""Scales of integers, and zeros: of a slot, of a channel in 32 slots (keys of KIVI), of neighboring channels of a slot.

The first two never meet a number: logits, weights and queries are multiplied instead, so that integers go into products
exactly.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.formats.entries import GROUP
from winnow.kernels.gpu.forms import FIELDS, tiled_plane
from winnow.kernels.gpu.integers import columns_of

_SCALES: tl.constexpr = tl.constexpr(FIELDS.index("scales"))
_ZEROS: tl.constexpr = tl.constexpr(FIELDS.index("zeros"))
_GROUP: tl.constexpr = tl.constexpr(GROUP)


@triton.jit
def scales_of_slots(side, slots, inside, FORM: tl.constexpr):
    """fp32 [N]: scales of slots that have one each."""
    scales = tl.load(side + _SCALES).to(tl.pointer_type(FORM.element))
    return tl.load(scales + slots, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def scaled_queries(side, asked, first, FORM: tl.constexpr, ASKED: tl.constexpr, PRODUCT: tl.constexpr):
    """The tiles of queries times the scales of channels in 32 slots from `first` on, and [M]: products with zeros."""
    scales = tl.load(side + _SCALES).to(tl.pointer_type(FORM.element)) + first // _GROUP * FORM.numbers
    zeros = tl.load(side + _ZEROS).to(tl.pointer_type(FORM.element)) + first // _GROUP * FORM.numbers
    constant = tl.zeros([ASKED], tl.float32)
    scaled = tl.tuple([])
    for plane in tl.static_range(len(FORM.tiled)):
        for each in tl.static_range(tl.constexpr(FORM.tiled[plane].tiles)):
            number, there = columns_of(each, tiled_plane(FORM, plane))
            there = there & (number < FORM.numbers)
            tile = asked[FORM.tiled[plane].before + each].to(tl.float32)
            scale = tl.load(scales + number, mask=there, other=0.0).to(tl.float32)
            scaled += ((tile * scale[None, :]).to(PRODUCT),)
            if FORM.tiled[plane].worth == 1:
                zero = tl.load(zeros + number, mask=there, other=0.0).to(tl.float32)
                constant += tl.sum(tile * zero[None, :], 1)
    return scaled, constant


@triton.jit
def by_groups(shared, slots, inside, TILE: tl.constexpr, FORM: tl.constexpr, PLANE: tl.constexpr, N: tl.constexpr):
    """fp32 [N, K]: scales, or zeros, [S, groups] at `shared` of the numbers of a tile of a plane."""
    row = shared.to(tl.pointer_type(FORM.element)) + slots[:, None] * FORM.groups
    if PLANE.even:
        # Loaded once for a block of bytes.
        blocks: tl.constexpr = PLANE.wide // PLANE.block
        field = TILE * PLANE.together + tl.arange(0, PLANE.together)
        first = (tl.arange(0, blocks)[:, None] * PLANE.fields + field[None, :]) * PLANE.block
        group = ((first + PLANE.start) // FORM.group)[None, :, :]
        found = tl.load(row[:, :, None] + group, mask=inside[:, None, None] & (group < FORM.groups), other=0.0)
        whole = tl.broadcast_to(found.to(tl.float32)[:, :, None, :], [N, blocks, PLANE.block, PLANE.together])
        tile = tl.reshape(whole, [N, PLANE.columns])
    else:
        number, there = columns_of(TILE, PLANE)
        there = there & (number < FORM.numbers)
        tile = tl.load(row + (number // FORM.group)[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def scaled_numbers(
    side, numbers, slots, inside, TILE: tl.constexpr, FORM: tl.constexpr, PLANE: tl.constexpr, N: tl.constexpr
):
    """fp32 [N, K]: the numbers [N, K] of a tile of a plane, by scales and zeros of their channels."""
    scales = by_groups(tl.load(side + _SCALES), slots, inside, TILE, FORM, PLANE, N)
    scaled = numbers.to(tl.float32) * scales
    # A number in two planes has its zero once.
    if FORM.zeros and PLANE.worth == 1:
        scaled += by_groups(tl.load(side + _ZEROS), slots, inside, TILE, FORM, PLANE, N)
    return scaled
