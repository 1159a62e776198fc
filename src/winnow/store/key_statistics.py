"""Means and spreads of a head's keys, which a store takes off them before it rounds them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.formats import PackedBlock
from winnow.kernels.formats.heads import heads_of_slots
from winnow.kernels.gpu import support as gpu
from winnow.select import Selection
from winnow.transfers import sent
from winnow.view import LayerView

_AT_ONCE = 8192
"""Slots that are added up together."""


class KeyStatistics(NamedTuple):
    """Per head and channel, in the model's dtype; None for what is not used."""

    means: Tensor | None = None
    """[H, D]: mean of the keys."""
    spreads: Tensor | None = None
    """[H, D]: square root of the standard deviation, or without means of the root mean square; 1 where that is 0."""

    def copied(self) -> KeyStatistics:
        """The same in memory of its own: every block holds, and counts, its own."""
        return KeyStatistics(*(None if each is None else each.clone() for each in self))


def key_statistics(
    view: LayerView, selection: Selection, like: PackedBlock | None, centered: bool, smoothed: bool
) -> KeyStatistics:
    """Statistics of every head's selected slots, those of `like` where it has them.

    A head without slots has means of 0 and spreads of 1. Statistics of a prompt stay when its tail is folded, so that
    slots need not be written again.
    """
    if like is not None and (like.keys.form.centered, like.keys.form.smoothed) == (centered, smoothed):
        return KeyStatistics(like.keys.means, like.keys.spreads)
    device, dtype = view.keys.device, view.keys.dtype
    sums, squares = _sums(view.keys.detach(), selection)
    counts = sent(selection.offsets.diff().clamp(min=1), device)[:, None]
    means = sums / counts if centered else torch.zeros_like(sums)
    spreads = (squares / counts - means.square()).clamp(min=0).pow(0.25).to(dtype)
    return KeyStatistics(
        means.to(dtype) if centered else None, torch.where(spreads > 0, spreads, 1.0) if smoothed else None
    )


def _sums(rows: Tensor, selection: Selection) -> tuple[Tensor, Tensor]:
    """fp64 [H, D] twice: sums over the selected slots of rows [H, N, D], and of their squares."""
    device = rows.device
    if gpu.packs(rows):
        # Imported where it serves: Triton takes a second, and there may be none.
        from winnow.kernels.gpu.summing import channel_sums

        return channel_sums(rows, selection.offsets, selection.positions.to(device))
    sums, squares = torch.zeros(2, rows.shape[0], rows.shape[2], dtype=torch.float64, device=device)
    for start in range(0, len(selection.positions), _AT_ONCE):
        positions = selection.positions[start : start + _AT_ONCE].to(device)
        head = heads_of_slots(selection.offsets, torch.arange(start, start + len(positions), device="cpu")).to(device)
        some = rows[head, positions].double()
        sums.index_add_(0, head, some)
        squares.index_add_(0, head, some.square_())
    return sums, squares
