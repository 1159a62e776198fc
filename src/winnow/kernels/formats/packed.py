"""Slots whose channels or bits are partly gone.

Every block has one format throughout; heads of different formats, and slots that stay dense, are blocks of their own
(`Parts`), whose partial results merge by log-sum-exp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.formats.bits import unpack_flags
from winnow.kernels.formats.columns import columns_rule, spread_columns
from winnow.kernels.formats.entries import GROUP, Entries, Quantizer, join_entries, quantize_flat
from winnow.kernels.formats.format import ON_CPU, Format
from winnow.kernels.formats.hadamard import hadamard
from winnow.kernels.formats.heads import HeadBounds, heads_of_slots, offsets_rule
from winnow.kernels.formats.pruned import Pruned, join_pruned, known_starts, row_sizes
from winnow.kernels.formats.schema import FINITE, Demand, Rule, Side, cat_present, check, check_sizes


class Form(NamedTuple):
    """The way in which the numbers of keys, or of values, are written."""

    bits: int
    """One of ENTRY_BITS."""
    rotated: bool = False
    """True if they are integers of rows after a Walsh–Hadamard transform (`hadamard.py`)."""
    centered: bool = False
    """True if the head's mean was subtracted from rows first."""
    smoothed: bool = False
    """True if what was left was divided by the head's spreads."""


class PackedMatrix(Format):
    """Keys or values of S slots, packed."""

    dim: int
    entries: Entries
    pruned: Pruned | None
    rotated: bool

    @property
    def form(self) -> Form:
        """The way in which the numbers are written."""
        return Form(self.entries.bits, self.rotated)

    @property
    def slots(self) -> int:
        """S"""
        return len(self.pruned.masks if self.pruned else self.entries.data)

    def recover(self, slots: Tensor, head: Tensor) -> Tensor:
        """Rows [n, dim] fp32 of slots [n] of heads [n]."""
        rows = self.numbers(slots, head)
        return hadamard(rows) if self.rotated else rows

    def numbers(self, slots: Tensor, head: Tensor) -> Tensor:
        """The same as they are written: rotated rows stay so, and lack their head's mean and spreads."""
        if self.pruned is not None:
            return self.pruned.recover(self.entries, self.dim, slots, head)
        return self.entries.decode(self.entries.data[slots], slots, self.dim)

    def take(self, slots: Tensor) -> PackedRows:
        """Rows of slots [n] as they are written, in that order; not where slots share scales."""
        pruned, counts = self.pruned, None
        if pruned is not None:
            if pruned.starts is not None:
                counts = unpack_flags(pruned.masks, self.dim).sum(1)
            if pruned.inverse_norms is not None:
                # A copy: every block holds, and counts, its own.
                pruned = replace(pruned, inverse_norms=pruned.inverse_norms.clone())
        return PackedRows(self.entries, pruned, counts).take(slots, self.dim)

    def counted(self) -> Iterator[tuple[str, Tensor | None]]:
        """Every tensor beside the kind of bytes that it counts as."""
        yield from self.entries.counted(self.name_in_files)
        if self.pruned is not None:
            yield from self.pruned.counted()

    def rules(self, side: Side) -> Iterator[Rule]:
        """Schema of the keys or values of a block."""
        flat = self.pruned is not None and self.pruned.starts is not None
        if self.rotated and (self.pruned is not None or self.entries.bits == 16):
            raise ValueError(f"{side.name} are rotated only as integers of all channels")
        yield from self.entries.rules(side, None if self.pruned is not None else self.dim, flat)
        if self.pruned is not None:
            yield from self.pruned.rules(side, self.entries, self.dim)


@dataclass(frozen=True)
class PackedKeys(PackedMatrix, name="keys"):
    """Keys of S slots."""

    dim: int
    """D"""
    entries: Entries
    channels: Tensor | None = None
    """int16 [H, T]: the channels that all slots of a head kept, ascending; the others are zero (ThinK)."""
    pruned: Pruned | None = None
    rotated: bool = False
    """True if entries are those of rows after a Walsh–Hadamard transform (`hadamard.py`)."""
    means: Tensor | None = None
    """In the model's dtype, [H, D]: what was subtracted from a head's keys before all else."""
    spreads: Tensor | None = None
    """In the model's dtype, [H, D]: by what they were divided next."""

    @property
    def form(self) -> Form:
        """The way in which the numbers are written."""
        return super().form._replace(centered=self.means is not None, smoothed=self.spreads is not None)

    def recover(self, slots: Tensor, head: Tensor) -> Tensor:
        """Rows [n, D] fp32 of slots [n] of heads [n]."""
        rows = super().recover(slots, head)
        if self.spreads is not None:
            rows = rows * self.spreads[head].float()
        return rows if self.means is None else rows + self.means[head].float()

    def numbers(self, slots: Tensor, head: Tensor) -> Tensor:
        """The same as they are written: rotated rows stay so, and lack their head's mean and spreads."""
        if self.channels is None:
            return super().numbers(slots, head)
        kept = self.entries.decode(self.entries.data[slots], slots, self.channels.shape[1])
        return spread_columns(kept, self.channels, head, self.dim)

    def take(self, slots: Tensor) -> PackedRows:
        """Rows of slots [n] as they are written, in that order; not where slots share scales."""
        channels = None if self.channels is None else self.channels.clone()
        return super().take(slots)._replace(channels=channels)

    def counted(self) -> Iterator[tuple[str, Tensor | None]]:
        """Every tensor beside the kind of bytes that it counts as."""
        yield from super().counted()
        yield from (("indices", self.channels), ("statistics", self.means), ("statistics", self.spreads))

    def rules(self, side: Side) -> Iterator[Rule]:
        """Schema of the keys of a block."""
        for name, constants in (("means", self.means), ("spreads", self.spreads)):
            if constants is None:
                continue
            if self.channels is not None or self.pruned is not None or self.entries.bits == 16:
                raise ValueError(f"keys have {name} only as integers of all channels")
            yield side.rule(name, constants, side.dtype, (side.heads, self.dim), content=(FINITE,))
        if self.channels is None:
            yield from super().rules(side)
            return
        if self.rotated:
            raise ValueError("keys have channels per head or are rotated, not both")
        if self.pruned is not None:
            raise ValueError("keys have channels per head or masks per slot, not both")
        yield columns_rule(side, self.channels, self.dim)
        yield from self.entries.rules(side, self.channels.shape[1], flat=False)


@dataclass(frozen=True)
class PackedValues(PackedMatrix, name="values"):
    """Values of S slots."""

    dim: int
    """Dv"""
    entries: Entries
    pruned: Pruned | None = None
    rotated: bool = False
    """True if entries are those of rows after a Walsh–Hadamard transform (`hadamard.py`)."""


_WHOLE_GROUPS = Demand(
    f"of grouped keys must be multiples of {GROUP}", lambda offsets: not bool((offsets % GROUP).any())
)


@dataclass(frozen=True)
class PackedBlock(HeadBounds, Format, name="packed"):
    """Kept slots of one format, head after head; at least one of keys and values is not dense. Immutable."""

    keys: PackedKeys
    values: PackedValues
    offsets: Tensor = field(metadata=ON_CPU)
    """[H + 1] int64 on the CPU: head h owns slots offsets[h] to offsets[h + 1]; multiples of 32 with grouped keys."""
    dtype: torch.dtype
    """The model's."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the tensors fit together."""
        check_sizes(self.dtype, self.key_dim, self.value_dim)
        check(self.rules())

    def rules(self) -> Iterator[Rule]:
        """Schema of the block; see `schema.check`."""
        yield offsets_rule(self.offsets, self.slots)
        for matrix in (self.keys, self.values):
            yield from matrix.rules(Side(matrix.name_in_files, self.slots, len(self.starts), self.dtype, self.device))
        if self.keys.entries.zeros is not None:
            yield offsets_rule(self.offsets, self.slots)._replace(demands=(_WHOLE_GROUPS,))

    @property
    def slots(self) -> int:
        """S"""
        return self.keys.slots

    @property
    def device(self) -> torch.device:
        """The device of all tensors but the offsets."""
        return self.keys.entries.data.device

    @property
    def key_dim(self) -> int:
        """D"""
        return self.keys.dim

    @property
    def value_dim(self) -> int:
        """Dv"""
        return self.values.dim

    @property
    def identity(self) -> int:
        """The same for all views of the same memory."""
        return id(self.keys.entries.data)

    def recover(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Slot indices [...] -> the keys [..., D] and values [..., Dv] in fp32 that attention takes them for."""
        flat = slots.flatten()
        head = heads_of_slots(self.offsets, flat)
        keys, values = self.keys.recover(flat, head), self.values.recover(flat, head)
        return keys.view(*slots.shape, self.key_dim), values.view(*slots.shape, self.value_dim)

    def numbers(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """As `recover`, but in the coordinates in which keys and values are written."""
        flat = slots.flatten()
        head = heads_of_slots(self.offsets, flat)
        keys, values = self.keys.numbers(flat, head), self.values.numbers(flat, head)
        return keys.view(*slots.shape, self.key_dim), values.view(*slots.shape, self.value_dim)

    def bytes(self) -> dict[str, int]:
        """Bytes held, by kind."""
        kinds = Counter({"indices": self.offsets.nbytes})
        for kind, tensor in (*self.keys.counted(), *self.values.counted()):
            kinds[kind] += 0 if tensor is None else tensor.nbytes
        return dict(+kinds)


# --- encoding ------------------------------------------------------------------------------------------------------


class PackedRows(NamedTuple):
    """Keys or values of some slots on their way into a block."""

    entries: Entries
    pruned: Pruned | None = None
    """Without `starts`: where rows begin is known once all are there."""
    counts: Tensor | None = None
    """[S] int64: how many channels every slot kept, where that differs."""
    channels: Tensor | None = None
    """int16 [H, T], where all slots of a head kept the same."""

    def take(self, slots: Tensor, dim: int) -> PackedRows:
        """Rows of slots [n], of D channels each, in that order."""
        sizes = signs = counts = None
        if self.counts is not None:
            sizes, signs = row_sizes(self.counts, dim, self.entries.bits_held).unbind(1)
            sizes, counts = sizes // self.entries.data.element_size(), self.counts[slots]
        pruned = None if self.pruned is None else self.pruned.take(slots, signs)
        return self._replace(entries=self.entries.take(slots, sizes), pruned=pruned, counts=counts)

    def quantized(self, bits: int, dtype: torch.dtype, quantize: Quantizer) -> PackedRows:
        """The same numbers in `bits` bits, with scales in `dtype`; 16 leave them as they are."""
        if bits == 16:
            return self
        rows = self.entries.data
        if self.counts is None:
            return self._replace(entries=quantize(rows.float(), bits, dtype))
        return self._replace(entries=quantize_flat(rows, self.counts, bits, dtype, quantize))


def join_rows(pieces: Sequence[PackedRows], dim: int, order: Tensor | None = None) -> PackedRows:
    """Rows of slots, of D channels each, as one. order: [S] which of all rows comes where; None: one after another."""
    joined = pieces[0] if len(pieces) == 1 else _joined(pieces)
    if order is not None:
        joined = joined.take(order, dim)
    if joined.pruned is None or joined.counts is None:
        return joined
    starts = known_starts(joined.pruned, joined.entries, joined.counts, dim)
    return joined._replace(pruned=replace(joined.pruned, starts=starts))


def _joined(pieces: Sequence[PackedRows]) -> PackedRows:
    """Rows of several pieces."""
    entries = join_entries([each.entries for each in pieces])
    counts = cat_present([each.counts for each in pieces])
    pruned = [each.pruned for each in pieces if each.pruned is not None]
    return PackedRows(entries, join_pruned(pruned) if pruned else None, counts, pieces[0].channels)
