"""Slots that an earlier block holds as they are to be written: taken over instead of packed again.

Packing what was recovered would choose among numbers that a format made equal (SPARK's pruned entries, integers of few
bits), and round them once more: other channels could stay, on some machines and not on others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.formats import PackedBlock
from winnow.kernels.formats.packed import Form, PackedRows
from winnow.kernels.formats.parts import slots_in_parts
from winnow.select import Selection
from winnow.store.base import Earlier
from winnow.transfers import sent


class Forms(NamedTuple):
    """The way in which slots of a block are written."""

    keys: Form
    values: Form

    @property
    def dense(self) -> bool:
        """True if all numbers stay as they are."""
        return self.keys.bits == self.values.bits == 16


class Written(NamedTuple):
    """Selected slots, some of which a packed block holds in the form that is wanted."""

    block: PackedBlock
    slots: Tensor
    """[S] int64: the slot of the block that every selected slot is, -1 where it is none."""

    def others(self, selection: Selection) -> Selection:
        """The selected slots that have yet to be packed."""
        new = self.slots < 0
        before = torch.cat([new.new_zeros(1, dtype=torch.int64), new.cumsum(0)]).cpu()
        return Selection(selection.positions[new], before[selection.offsets])

    def rows(self) -> tuple[PackedRows, PackedRows]:
        """Keys and values of the slots that the block holds."""
        held = self.slots[self.slots >= 0]
        return self.block.keys.take(held), self.block.values.take(held)

    def order(self) -> Tensor:
        """[S]: which of the others and then the held ones every selected slot is."""
        return (self.slots >= 0).argsort(stable=True).argsort()


def written_before(earlier: Earlier, selection: Selection, form: Forms) -> Written | None:
    """The slots of a selection that an earlier block holds in a form; None where it holds none."""
    slots = _earlier_slots(earlier, selection)
    for part, mine, places in slots_in_parts(earlier.block, slots):
        if isinstance(part, PackedBlock) and (part.keys.form, part.values.form) == form and len(places):
            found = torch.full_like(slots, -1)
            found[mine] = places
            return Written(part, found)
    return None


def _earlier_slots(earlier: Earlier, selection: Selection) -> Tensor:
    """[S] int64: the slot of the earlier block that every selected slot is, -1 where it is none."""
    columns = sent(selection.positions, earlier.slots.device)
    head = selection.heads(columns.device)
    width = earlier.slots.shape[1]
    slots = earlier.slots[head, columns.clamp(max=max(width - 1, 0))]
    return torch.where(columns < width, slots, -1)
