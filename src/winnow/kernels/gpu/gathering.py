"""Chosen slots as a kernel reads them where they lie: gathered, in the coordinates in which they are packed."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from winnow.kernels.gpu.tiles import tile_width
from winnow.kernels.gpu.turning import turn_of, turned_rows

_LARGEST_HALF: tl.constexpr = tl.constexpr(torch.finfo(torch.float16).max)


class Chosen(NamedTuple):
    """Slots of one layer that are about to be packed."""

    rows: Tensor
    """[H, N, D]"""
    head: Tensor
    """[S] int64"""
    token: Tensor
    """[S] int64"""
    columns: Tensor | None = None
    """int16 [H, T]: the channels that all slots of a head keep; None: all of them."""

    @property
    def width(self) -> int:
        """Numbers that are packed of a slot."""
        return (self.rows if self.columns is None else self.columns).shape[-1]

    def readable(self) -> Chosen:
        """The same with neighboring channels side by side, and apart from what made them."""
        rows = self.rows.detach()
        return self._replace(rows=rows if rows.stride(-1) == 1 else rows.contiguous())


class Coordinates(NamedTuple):
    """Steps that rows go through before they are rounded."""

    means: Tensor | None
    """[H, D] in the dtype of the rows, subtracted first."""
    spreads: Tensor | None
    """[H, D], divided by next."""
    rotated: bool


@triton.jit
def gathered(
    rows, head_stride, token_stride, heads, tokens, columns, means, spreads, slot, inside,
    CHOSEN: tl.constexpr, CENTERED: tl.constexpr, SMOOTHED: tl.constexpr, STEPS: tl.constexpr, FACTOR: tl.constexpr,
    HALF: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """fp32 [SLOTS, WIDE]: rows [H, N, D] at heads and tokens [S]; int32 [SLOTS]: 1 where a number is not finite.

    Of rows of which heads keep some columns only, those.
    """
    channel = tl.arange(0, WIDE)
    mask = inside[:, None] & (channel < DIM)[None, :]
    head, token = tl.load(heads + slot, mask=inside, other=0), tl.load(tokens + slot, mask=inside, other=0)
    place = head * head_stride + token * token_stride
    own = head[:, None] * DIM + channel[None, :]
    column = channel[None, :]
    if CHOSEN:
        column = tl.load(columns + own, mask=mask, other=0).to(tl.int32)
    numbers = tl.load(rows + place[:, None] + column, mask=mask, other=0.0).to(tl.float32)
    unfit = tl.max((tl.abs(numbers) < float("inf")).to(tl.int32) ^ 1, 1)
    if CENTERED:
        numbers = numbers - tl.load(means + own, mask=mask, other=0.0).to(tl.float32)
    if SMOOTHED:
        numbers = tl.div_rn(numbers, tl.load(spreads + own, mask=mask, other=1.0).to(tl.float32))
    if STEPS > 0:
        numbers = turned_rows(numbers, SLOTS, WIDE, STEPS, FACTOR)
    if HALF:
        # Sums of numbers near its end are beyond what a scale can be.
        numbers = tl.minimum(tl.maximum(numbers, -_LARGEST_HALF), _LARGEST_HALF)
    return numbers, unfit


def gathering(chosen: Chosen, coordinates: Coordinates, group: int) -> dict[str, int | float | bool]:
    """The constants of `gathered`, but for SLOTS, of rows that are told apart in groups of so many channels."""
    dim = chosen.width
    steps, factor = turn_of(dim)
    return {
        "CHOSEN": chosen.columns is not None,
        "CENTERED": coordinates.means is not None,
        "SMOOTHED": coordinates.spreads is not None,
        "STEPS": steps if coordinates.rotated else 0,
        "FACTOR": factor,
        "HALF": chosen.rows.dtype == torch.float16,
        "DIM": dim,
        "WIDE": max(tile_width(dim), group),
    }
