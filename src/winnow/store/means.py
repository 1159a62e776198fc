"""Means of keys, which a store subtracts before it rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.kernels.formats import PackedBlock
from winnow.kernels.formats.heads import heads_of_slots
from winnow.select import Selection
from winnow.view import LayerView

_AT_ONCE = 8192
"""Slots that are added up together."""


def key_means(view: LayerView, selection: Selection, like: PackedBlock | None) -> Tensor:
    """[H, D] in the model's dtype: the mean key of every head's selected slots, those of `like` where it has them.

    A head without slots has zeros. Means of a prompt stay when its tail is folded, so that slots need not be written
    again.
    """
    if like is not None and like.keys.means is not None:
        return like.keys.means
    heads, _, dim = view.keys.shape
    device = view.keys.device
    sums = torch.zeros(heads, dim, dtype=torch.float64, device=device)
    for start in range(0, len(selection.positions), _AT_ONCE):
        positions = selection.positions[start : start + _AT_ONCE].to(device)
        head = heads_of_slots(selection.offsets, torch.arange(start, start + len(positions))).to(device)
        sums.index_add_(0, head, view.keys.detach()[head, positions].double())
    counts = selection.offsets.diff().clamp(min=1).to(device)
    return (sums / counts[:, None]).to(view.keys.dtype)
