"""Chosen keys as integers whose errors make up for each other where queries look, gathered and packed in one launch.

A program has slots of one head. It rounds one channel of them after another and takes every error off all channels
behind it at once (`store/feedback.py`). Scales are those of `packing.py`, to the bit. Products are added up in the
order of the channels and rounded once with each addition, where torch adds up those of 32 channels as its matrix
products do: a number half-way between two integers may become the other one.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from winnow.kernels.formats.entries import Entries
from winnow.kernels.gpu.forms import ELEMENTS, Form
from winnow.kernels.gpu.gathering import Chosen, Coordinates, gathered, gathering
from winnow.kernels.gpu.packing import room
from winnow.kernels.gpu.writing import inverse, least_integer, rounded, scales_of, store_integers, store_scales
from winnow.transfers import sent

NUMBERS = 1024
"""Numbers of a program, which is one warp: a row of several would meet in shared memory for each of its channels."""


class Fed(NamedTuple):
    """Worth of the errors of channels to the channels behind them, and the slots that these are of."""

    feedback: Tensor
    """[H, D, D] fp32, strictly upper."""
    offsets: Tensor
    """[H + 1] int64 on the CPU: the first of the chosen slots of every head."""


@triton.jit
def feed_slots(
    rows, head_stride, token_stride, heads, tokens, columns, means, spreads, feedback, offsets, data, scales,
    CHOSEN: tl.constexpr, CENTERED: tl.constexpr, SMOOTHED: tl.constexpr, STEPS: tl.constexpr, FACTOR: tl.constexpr,
    HALF: tl.constexpr, FORM: tl.constexpr, GROUP: tl.constexpr, LEAST: tl.constexpr,
    DIM: tl.constexpr, WIDE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """data and scales as those of `pack_slots`, with feedback fp32 [H, D, D] and heads' offsets [H + 1]."""
    head = tl.program_id(1).to(tl.int64)
    first, stop = tl.load(offsets + head) + tl.program_id(0) * SLOTS, tl.load(offsets + head + 1)
    if first >= stop:  # heads have different numbers of slots
        return
    slot = first + tl.arange(0, SLOTS)
    inside = slot < stop
    numbers, unfit = gathered(
        rows, head_stride, token_stride, heads, tokens, columns, means, spreads, slot, inside,
        CHOSEN, CENTERED, SMOOTHED, STEPS, FACTOR, HALF, DIM, WIDE, SLOTS,
    )  # fmt: skip
    MOST: tl.constexpr = (1 << (FORM.bits - 1)) - 1
    GROUPS: tl.constexpr = (DIM + GROUP - 1) // GROUP
    held = scales_of(tl.reshape(numbers, [SLOTS, WIDE // GROUP, GROUP]), 2, LEAST, MOST, FORM.element)
    store_scales(scales, slot, inside, held, unfit, FORM, GROUPS, WIDE // GROUP)
    channel, group = tl.arange(0, WIDE), tl.arange(0, WIDE // GROUP)
    row = feedback + head * DIM * DIM + channel
    for own in range(GROUPS):
        # Sums of one number and zeros: registers have no address.
        size = tl.sum(tl.where((group == own)[None, :], held, 0.0), 1)
        factor = inverse(size)
        for at in range(own * GROUP, tl.minimum((own + 1) * GROUP, DIM)):
            now = (channel == at)[None, :]
            number = tl.sum(tl.where(now, numbers, 0.0), 1)
            integer = rounded(number * factor, LEAST, MOST).to(tl.float32)
            error = number - integer * size
            # 0 for the channels before, which are integers by now.
            share = tl.load(row + at * DIM, mask=channel < DIM, other=0.0)
            less = tl.fma(tl.broadcast_to(-error[:, None], [SLOTS, WIDE]), share[None, :], numbers)
            numbers = tl.where(now, integer[:, None], less)
    store_integers(data, slot, inside, numbers.to(tl.int32), FORM, WIDE, SLOTS)


def packed_for_queries(
    chosen: Chosen, coordinates: Coordinates, fed: Fed, bits: int, group: int, signed: bool
) -> Entries:
    """Entries of the chosen keys, of 8 to 2 bits and all their channels, as `packing.packed` makes them."""
    chosen = chosen.readable()
    rows, head, token, columns = chosen
    entries, constants = room(chosen, bits, group), gathering(chosen, coordinates, group)
    together = max(1, NUMBERS // int(constants["WIDE"]))
    if len(token):
        most = int(fed.offsets.diff().max())
        feed_slots[(triton.cdiv(most, together), len(fed.feedback))](
            *(rows, *rows.stride()[:2], head, token, columns, coordinates.means, coordinates.spreads),
            *(fed.feedback.contiguous(), sent(fed.offsets, rows.device), entries.data, entries.scales),
            **constants,
            FORM=Form(ELEMENTS[rows.dtype], bits, chosen.width),
            GROUP=group or constants["WIDE"],
            LEAST=least_integer(bits, signed),
            SLOTS=together,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return entries
