"""A layer some of whose slots an earlier block holds, as a fold shows it to a store."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from support.packed_slots import WINDOW, layer_of
from winnow.kernels import Block, DenseBlock
from winnow.kernels.formats.parts import slots_in_parts
from winnow.select import Selection
from winnow.store import Earlier
from winnow.view import LayerView

NEW = 9
"""Tokens that come after the block."""


class Later(NamedTuple):
    """A layer whose first columns are the slots of an earlier block, and its part that stays."""

    view: LayerView
    selection: Selection
    earlier: Earlier
    from_slots: Tensor
    """[S] int64: the earlier packed slot that every selected slot is, -1 for one that was dense or is new."""


def later(block: Block, view: LayerView, seed: int) -> Later:
    """The slots of a block and new tokens, of which some stay; packed ones come as noise, so that nobody can read them.

    Queries are others than those that the block was packed with.
    """
    generator = torch.Generator().manual_seed(seed)
    heads, _, dim = view.keys.shape
    other = layer_of(dim, view.values.shape[-1], NEW, heads, dtype=view.keys.dtype, seed=seed + 50, layer=view.layer)
    counts = block.offsets.diff()
    columns = torch.arange(int(counts.max()))
    slots = torch.where(columns < counts[:, None], block.starts[:, None] + columns, -1)
    held = slots >= 0
    keys, values = (torch.randn(*slots.shape, size, generator=generator) for size in (dim, view.values.shape[-1]))
    packed = slots.clone()
    for part, mine, places in slots_in_parts(block, slots[held]):
        if isinstance(part, DenseBlock):
            where = held.nonzero()[mine].unbind(1)
            keys[where], values[where] = part.recover(places)
            packed[where] = -1
    stays = torch.rand(heads, slots.shape[1] + NEW, generator=generator) < 0.6
    present = stays & torch.cat([held, torch.ones(heads, NEW, dtype=torch.bool)], 1)
    present[:, -WINDOW:] = True
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), present.sum(1).cumsum(0)])
    sources = torch.cat([packed, torch.full((heads, NEW), -1)], 1)[present]
    joined = other._replace(
        keys=torch.cat([keys.to(other.keys.dtype), other.keys], 1),
        values=torch.cat([values.to(other.values.dtype), other.values], 1),
    )
    return Later(joined, Selection(present.nonzero()[:, 1], offsets), Earlier(block, slots), sources)
