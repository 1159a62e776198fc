"""Chosen slots summed up by head, and their squares: what ThinK chooses channels by, and what keys are centered by."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from winnow.kernels.gpu.packing import NUMBERS, WARPS
from winnow.kernels.gpu.tiles import tile_width
from winnow.transfers import sent

PIECES = 64
"""Programs of a head, at most: with eight heads several for each multiprocessor, and sums that take little memory."""
LEAST = 128
"""Slots of a program, about, where there are so many."""


class ChannelSums(NamedTuple):
    """Sums over the slots of every head."""

    numbers: Tensor
    """fp64 [H, D]"""
    squares: Tensor
    """fp64 [H, D]"""


@triton.jit
def sum_channels(
    rows, head_stride, token_stride, offsets, tokens, sums, pieces,
    DIM: tl.constexpr, WIDE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """sums fp64 [H, pieces, 2, D]: of rows [H, N, D] at tokens [S], by heads' offsets [H + 1], and of squares."""
    head, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start, stop = tl.load(offsets + head), tl.load(offsets + head + 1)
    slots = tl.cdiv(stop - start, pieces)
    first = start + piece * slots
    last = tl.minimum(first + slots, stop)
    channel = tl.arange(0, WIDE)
    there = channel < DIM
    added, squares = tl.zeros([SLOTS, WIDE], tl.float64), tl.zeros([SLOTS, WIDE], tl.float64)
    for at in range(first, last, SLOTS):
        slot = at + tl.arange(0, SLOTS)
        token = tl.load(tokens + slot, mask=slot < last, other=0)
        place = head * head_stride + token * token_stride
        mask = (slot < last)[:, None] & there[None, :]
        numbers = tl.load(rows + place[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float64)
        added += numbers
        squares += numbers * numbers
    to = sums + (head * pieces + piece) * 2 * DIM + channel
    tl.store(to, tl.sum(added, 0), mask=there)
    tl.store(to + DIM, tl.sum(squares, 0), mask=there)


def channel_sums(rows: Tensor, offsets: Tensor, token: Tensor) -> ChannelSums:
    """Sums over the tokens [S] of rows [H, N, D], head h's from offsets[h] to offsets[h + 1]."""
    rows = rows.detach()
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    heads, _, dim = rows.shape
    wide = tile_width(dim)
    pieces = min(PIECES, max(1, len(token) // (heads * LEAST)))
    sums = torch.empty(heads, pieces, 2, dim, dtype=torch.float64, device=rows.device)
    with torch.cuda.device_of(rows):  # Triton launches on the current one
        sum_channels[(heads, pieces)](
            *(rows, *rows.stride()[:2], sent(offsets, rows.device), token, sums, pieces),
            DIM=dim,
            WIDE=wide,
            SLOTS=max(1, NUMBERS // wide),
            num_warps=WARPS,
        )
    return ChannelSums(*sums.sum(1).unbind(1))
