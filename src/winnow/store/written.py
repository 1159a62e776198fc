"""Slots that an earlier block holds as they are to be written: taken over instead of packed again.

Packing what was recovered would choose among numbers that a format made equal (SPARK's pruned entries, integers of few
bits), and round them once more: other channels could stay, on some machines and not on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.formats import PackedBlock
from winnow.kernels.formats.entries import GROUP, Entries
from winnow.kernels.formats.packed import Form, PackedRows, join_rows
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
        held, keys = self.slots[self.slots >= 0], self.block.keys
        if not _in_groups(keys.entries):
            return keys.take(held), self.block.values.take(held)
        channels = None if keys.channels is None else keys.channels.clone()  # every block holds, and counts, its own
        return PackedRows(_groups_taken(keys.entries, held), channels=channels), self.block.values.take(held)

    def order(self) -> Tensor:
        """[S]: which of the others and then the held ones every selected slot is."""
        held = self.slots >= 0
        new = (~held).cumsum(0)
        return torch.where(held, new[-1:] + held.cumsum(0), new) - 1


def written_before(earlier: Earlier, selection: Selection, form: Forms, together: int = 1) -> Written | None:
    """The slots of a selection that an earlier block holds in a form; None where it holds none.

    together: so many neighboring slots can only be taken over together; None, too, where some of them are gone.
    """
    slots = _earlier_slots(earlier, selection)
    for part, mine, places in slots_in_parts(earlier.block, slots):
        if isinstance(part, PackedBlock) and (part.keys.form, part.values.form) == form and len(places):
            found = torch.full_like(slots, -1)
            found[mine] = places
            return Written(part, found) if together == 1 or _are_whole(found, together) else None
    return None


def joined_rows(pieces: Sequence[PackedRows], dim: int, order: Tensor | None) -> PackedRows:
    """As `join_rows`, also where slots share scales: order then keeps their groups together."""
    if order is None or not _in_groups(pieces[0].entries):
        return join_rows(pieces, dim, order)
    joined = join_rows(pieces, dim)
    return joined._replace(entries=_groups_taken(joined.entries, order))


def _in_groups(entries: Entries) -> bool:
    """True if neighboring slots share scales."""
    return entries.zeros is not None and len(entries.zeros) < len(entries.data)


def _groups_taken(entries: Entries, slots: Tensor) -> Entries:
    """Entries of slots [n] as they are written, in that order: whole groups, each in its own order."""
    groups = slots[::GROUP] // GROUP
    assert entries.scales is not None
    assert entries.zeros is not None
    return replace(entries, data=entries.data[slots], scales=entries.scales[groups], zeros=entries.zeros[groups])


def _are_whole(slots: Tensor, together: int) -> bool:
    """True if slots [S] of a block, -1 where there is none, come in whole groups of it, in any order of these."""
    groups = slots.view(-1, together)
    first = groups[:, :1]
    inside = torch.where(first < 0, 0, torch.arange(together, device=slots.device))
    return bool(((first < 0) | (first % together == 0)).all() & (groups == first + inside).all())


def _earlier_slots(earlier: Earlier, selection: Selection) -> Tensor:
    """[S] int64: the slot of the earlier block that every selected slot is, -1 where it is none."""
    columns = sent(selection.positions, earlier.slots.device)
    head = selection.heads(columns.device)
    width = earlier.slots.shape[1]
    slots = earlier.slots[head, columns.clamp(max=max(width - 1, 0))]
    return torch.where(columns < width, slots, -1)
