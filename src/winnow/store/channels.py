"""Choice of the channels that stay: the half of a packed store that is not about bits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.doubts import doubted
from winnow.errors import ModelError
from winnow.kernels.formats import Block, PackedBlock, parts_of
from winnow.kernels.formats.bits import row_bytes
from winnow.kernels.formats.columns import take_columns
from winnow.kernels.formats.entries import Entries
from winnow.kernels.formats.packed import PackedRows
from winnow.kernels.pruning import Split, split_rows
from winnow.parameters import SLACK
from winnow.select import Selection
from winnow.view import LayerView, last_queries


class Slots(NamedTuple):
    """Slots of one layer that are about to be packed, head after head."""

    keys: Tensor
    """[S, D] in the model's dtype"""
    values: Tensor
    """[S, Dv]"""
    head: Tensor
    """[S] int64: the head of every slot."""


@dataclass(frozen=True)
class ChannelChoice:
    """The decision for one layer of one sequence; this one keeps all channels.

    It never sees where slots lie: those of which each keeps channels of its own are split by whoever packs them.
    """

    columns: Tensor | None = None
    """int16 [H, T], ascending: the channels of keys that all slots of a head keep; None where that says nothing."""

    def own_keys(self, split: Split) -> PackedRows | None:
        """Numbers that stay of keys, at 16 bits, where every slot keeps channels of its own; else None."""
        return None

    def own_values(self, split: Split) -> PackedRows | None:
        """The same of values."""
        return None

    def keys(self, slots: Slots) -> PackedRows:
        """Numbers that stay of gathered keys, at 16 bits."""
        if self.columns is not None:
            return self.with_columns(Entries(take_columns(slots.keys, self.columns, slots.head), 16))
        return self.own_keys(partial(split_rows, slots.keys, slots.head)) or PackedRows(Entries(slots.keys, 16))

    def values(self, slots: Slots) -> PackedRows:
        """Numbers that stay of gathered values, at 16 bits."""
        return self.own_values(partial(split_rows, slots.values, slots.head)) or PackedRows(Entries(slots.values, 16))

    def with_columns(self, entries: Entries) -> PackedRows:
        """Entries of keys, with the channels that they are of."""
        # A copy: every block holds, and counts, its own.
        return PackedRows(entries, channels=None if self.columns is None else self.columns.clone())


class Width(NamedTuple):
    """Size of one row of a packed matrix: numbers, and bytes besides the numbers."""

    numbers: int
    """Kept numbers; the most that there can be where slots differ."""
    aside: float = 0
    """Bytes for masks, signs and statistics."""

    def bytes(self, bits: int, itemsize: int) -> float:
        """Bytes of a row, scales not counted."""
        whole = self.numbers * itemsize if bits == 16 else row_bytes(self.numbers, bits)
        return whole + self.aside


class Channels(ABC):
    """Base of ways to choose channels: half of a packed store. Subclasses are frozen dataclasses."""

    per_slot: bool = False
    """True if slots of one head keep different channels."""

    @property
    def varies(self) -> bool:
        """True if slots of one head keep different numbers of channels."""
        return False

    @property
    def compares_slots(self) -> bool:
        """True if what a new slot keeps depends on keys and values of others that are packed already.

        If it does not, those need not be recovered when slots are packed behind them.
        """
        return True

    @property
    def window_dense(self) -> bool:
        """True if the window's slots stay as they are."""
        return False

    def queries_needed(self, length: int) -> int:
        """The number of last queries, of a prompt of `length` tokens, that the choice depends on."""
        return 0

    @abstractmethod
    def choose(self, view: LayerView, selection: Selection, like: PackedBlock | None) -> ChannelChoice:
        """The decision; the same as for `like`, if that is given."""

    @abstractmethod
    def widths(self, key_dim: int, value_dim: int, itemsize: int) -> tuple[Width, Width]:
        """Sizes of a row of keys and of a row of values."""

    def head_bytes(self, key_dim: int) -> int:
        """Bytes that a head takes once in every block it is part of."""
        return 0


@dataclass(frozen=True)
class AllChannels(Channels):
    """Every channel of every slot."""

    @property
    def compares_slots(self) -> bool:
        return False

    def choose(self, view: LayerView, selection: Selection, like: PackedBlock | None) -> ChannelChoice:
        return ChannelChoice()

    def widths(self, key_dim: int, value_dim: int, itemsize: int) -> tuple[Width, Width]:
        return Width(key_dim), Width(value_dim)


def packed_part(block: Block | None) -> PackedBlock | None:
    """A packed part of a prefix, where it has one: constants of heads are the same in all of them."""
    parts = () if block is None else parts_of(block)
    return next((part for part in parts if isinstance(part, PackedBlock)), None)


def window_queries(view: LayerView, count: int) -> Tensor:
    """[H, G·n, D] fp32: the last n queries of every KV head's group."""
    queries = last_queries(view.queries, count).detach().float()
    return queries.reshape(view.keys.shape[0], -1, queries.shape[-1])


def check_finite(numbers: Tensor, layer: int, kind: str) -> None:
    """Raise ModelError where a number cannot be packed."""
    if numbers.numel():
        doubted(~all_finite(numbers), not_finite(layer, kind))


def all_finite(numbers: Tensor) -> Tensor:
    """True, as a scalar, if numbers are finite, of which there is one at least."""
    if numbers.device.type == "cpu" and numbers.dtype == torch.float32:
        # A sum takes less time than extremes there; one that is not finite may have overflowed.
        finite = numbers.sum().isfinite()
        if bool(finite):
            return finite
    # The two extremes take one pass, and NaN is both of them.
    return torch.stack(numbers.aminmax()).isfinite().all()


def not_finite(layer: int, kind: str) -> ModelError:
    """An error about numbers that cannot be packed."""
    return ModelError(
        f"The {kind} of layer {layer} contain infinities or NaN, which no packed form can hold. Check the prompt "
        "without compression; a model in float16 may need bfloat16 or float32."
    )


def whole_part(ratio: float, dim: int) -> int:
    """⌊λD⌋; decimal fractions are not exact in binary, and 0.29 of 100 are 29."""
    return math.floor(ratio * dim + SLACK)
