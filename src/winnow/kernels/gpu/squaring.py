"""Squares of the chosen slots' channels, summed up by head: by which ThinK chooses."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from winnow.kernels.gpu.packing import NUMBERS, WARPS
from winnow.kernels.gpu.tiles import tile_width

PIECES = 64
"""Programs of a head, at most: with eight heads several for each multiprocessor, and sums that take little memory."""
LEAST = 128
"""Slots of a program, about, where there are so many."""


@triton.jit
def sum_squares(
    rows, head_stride, token_stride, offsets, tokens, sums, pieces,
    DIM: tl.constexpr, WIDE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """sums fp64 [H, pieces, D]: of squares of rows [H, N, D] at tokens [S], a head's from its offset [H + 1] on."""
    head, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start, stop = tl.load(offsets + head), tl.load(offsets + head + 1)
    slots = tl.cdiv(stop - start, pieces)
    first = start + piece * slots
    last = tl.minimum(first + slots, stop)
    channel = tl.arange(0, WIDE)
    there = channel < DIM
    found = tl.zeros([SLOTS, WIDE], tl.float64)
    for at in range(first, last, SLOTS):
        slot = at + tl.arange(0, SLOTS)
        token = tl.load(tokens + slot, mask=slot < last, other=0)
        place = head * head_stride + token * token_stride
        mask = (slot < last)[:, None] & there[None, :]
        numbers = tl.load(rows + place[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float64)
        found += numbers * numbers
    tl.store(sums + (head * pieces + piece) * DIM + channel, tl.sum(found, 0), mask=there)


def squares(rows: Tensor, offsets: Tensor, token: Tensor) -> Tensor:
    """fp64 [H, D]: sums of squares of rows [H, N, D] at tokens [S], head h's from offsets[h] to offsets[h + 1]."""
    rows = rows.detach()
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    heads, _, dim = rows.shape
    wide = tile_width(dim)
    pieces = min(PIECES, max(1, len(token) // (heads * LEAST)))
    sums = torch.empty(heads, pieces, dim, dtype=torch.float64, device=rows.device)
    sum_squares[(heads, pieces)](
        *(rows, *rows.stride()[:2], offsets.to(rows.device), token, sums, pieces),
        DIM=dim,
        WIDE=wide,
        SLOTS=max(1, NUMBERS // wide),
        num_warps=WARPS,
    )
    return sums.sum(1)
