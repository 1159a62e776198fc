"""Rows of slots, in whatever form they are written, and products with them.

Keys and values have a few functions each, between which no form is known: `prepared` and `products` for keys,
`nothing`, `added` and `written` for values. What they hand on is theirs: a tuple of tiles, one or more for every
plane in which numbers lie.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.forms import FIELDS, tiled_plane
from winnow.kernels.gpu.integers import columns_of, plane_at, tile_of
from winnow.kernels.gpu.pruned import pruned_rows
from winnow.kernels.gpu.queries import load_queries
from winnow.kernels.gpu.scales import scaled_numbers
from winnow.kernels.native_args import PER_SLOT

_CHANNELS: tl.constexpr = tl.constexpr(FIELDS.index("channels"))
_PER_SLOT: tl.constexpr = tl.constexpr(PER_SLOT)


@triton.jit
def loaded_plane(
    side, first, slots, inside, head, FORM: tl.constexpr, PLANE: tl.constexpr, N: tl.constexpr, PRODUCT: tl.constexpr
):
    """[N, K]: a plane of the rows of slots [N] of a head, from slot `first` on."""
    if FORM.masked:
        loaded = pruned_rows(side, first, slots, inside, head, FORM, PLANE.wide, N, PRODUCT)
    else:
        loaded = plane_at(side, slots, inside, FORM, PLANE)
    return loaded


# --- keys -----------------------------------------------------------------------------------------------------------


@triton.jit
def prepared(side, rows, present, head, FORM: tl.constexpr, PRODUCT: tl.constexpr):
    """Tiles [M, K] of the queries at rows [M], each with the channels of a head that a tile of keys will have."""
    asked = tl.tuple([])
    for plane in tl.static_range(len(FORM.tiled)):
        for each in tl.static_range(tl.constexpr(FORM.tiled[plane].tiles)):
            channel, there = columns_of(each, tiled_plane(FORM, plane))
            there = there & (channel < FORM.numbers)
            if FORM.channels:
                kept = tl.load(side + _CHANNELS).to(tl.pointer_type(tl.int16)) + head * FORM.numbers
                channel = tl.load(kept + channel, mask=there, other=0)
            tile = load_queries(rows, present, channel, there).to(PRODUCT)
            asked += (tile * FORM.tiled[plane].worth,)
    return asked


@triton.jit
def products(
    side, asked, shared, first, slots, inside, head,
    FORM: tl.constexpr, ASKED: tl.constexpr, N: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """fp32 [M, N]: products of prepared queries with the keys of slots [N] of a head, and with what they share."""
    logits = tl.zeros([ASKED, N], tl.float32)
    for plane in tl.static_range(len(FORM.tiled)):
        loaded = loaded_plane(side, first, slots, inside, head, FORM, tiled_plane(FORM, plane), N, PRODUCT)
        for each in tl.static_range(tl.constexpr(FORM.tiled[plane].tiles)):
            keys = tile_of(loaded, each, tiled_plane(FORM, plane), N, PRODUCT, True)
            if FORM.scaled_by_channel:
                keys = scaled_numbers(keys, shared, each, FORM, tiled_plane(FORM, plane), N, PRODUCT)
            tile = asked[FORM.tiled[plane].before + each]
            logits = tl.dot(tile, tl.trans(keys.to(PRODUCT)), logits, input_precision="ieee")
    if FORM.scaling == _PER_SLOT and not FORM.masked:
        logits *= shared[0].to(tl.float32)[None, :]
    return logits


# --- values ---------------------------------------------------------------------------------------------------------


@triton.jit
def nothing(FORM: tl.constexpr, ASKED: tl.constexpr):
    """Sums of no values: tiles [M, K]."""
    sums = tl.tuple([])
    for plane in tl.static_range(len(FORM.tiled)):
        for _ in tl.static_range(tl.constexpr(FORM.tiled[plane].tiles)):
            sums += (tl.full([ASKED, FORM.tiled[plane].columns], 0.0, tl.float32),)
    return sums


@triton.jit
def added(
    side, sums, fading, weights, shared, first, slots, inside, head,
    FORM: tl.constexpr, N: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """Sums times fading [M], and weights [M, N] times the values of slots [N] of a head, with what these share."""
    weights, unit = weighed(weights, shared, FORM, PRODUCT)
    after = tl.tuple([])
    for plane in tl.static_range(len(FORM.tiled)):
        loaded = loaded_plane(side, first, slots, inside, head, FORM, tiled_plane(FORM, plane), N, PRODUCT)
        for each in tl.static_range(tl.constexpr(FORM.tiled[plane].tiles)):
            values = tile_of(loaded, each, tiled_plane(FORM, plane), N, PRODUCT, False)
            if FORM.scaled_by_channel:
                values = scaled_numbers(values, shared, each, FORM, tiled_plane(FORM, plane), N, PRODUCT)
            found = tl.dot(weights, values.to(PRODUCT), input_precision="ieee") * unit
            after += (sums[FORM.tiled[plane].before + each] * fading[:, None] + found,)
    return after


@triton.jit
def weighed(weights, shared, FORM: tl.constexpr, PRODUCT: tl.constexpr):
    """Weights [M, N] as what values of slots [N] are written as is multiplied by, and what sums are multiplied by."""
    unit = 1.0
    if FORM.scaling == _PER_SLOT and not FORM.masked:
        own = shared[0].to(tl.float32)
        if tl.float16 == PRODUCT:
            # Small numbers lose their last bits in fp16: weights meet scales as shares of the largest.
            unit = tl.max(tl.abs(own), 0)
            own = own / tl.where(unit == 0.0, 1.0, unit)
        weights = weights * own[None, :]
    return weights.to(PRODUCT), unit


@triton.jit
def written(rows, sums, present, FORM: tl.constexpr):
    """Stores sums of values as rows [M] of pointers, their channels in order."""
    for plane in tl.static_range(len(FORM.tiled)):
        if FORM.tiled[plane].worth > 1:
            # Another thread wrote what is added to.
            tl.debug_barrier()
        for each in tl.static_range(tl.constexpr(FORM.tiled[plane].tiles)):
            channel, there = columns_of(each, tiled_plane(FORM, plane))
            mask = present[:, None] & (there & (channel < FORM.numbers))[None, :]
            tile = sums[FORM.tiled[plane].before + each] * FORM.tiled[plane].worth
            place = rows[:, None] + channel[None, :]
            if FORM.tiled[plane].worth > 1:
                tile += tl.load(place, mask=mask, other=0.0)
            tl.store(place, tile, mask=mask)
