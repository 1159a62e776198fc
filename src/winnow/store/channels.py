"""Which channels of a slot stay: the half of a packed store that is not about bits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from winnow.errors import ModelError
from winnow.kernels.bits import row_bytes
from winnow.kernels.interface import Block, PackedBlock, parts_of
from winnow.kernels.packed import Pruned
from winnow.select import Selection
from winnow.view import LayerView


class Slots(NamedTuple):
    """Slots of one layer that are about to be packed, head after head."""

    keys: Tensor
    """[S, D] in the model's dtype"""
    values: Tensor
    """[S, Dv]"""
    head: Tensor
    """[S] int64: the head of every slot."""
    heads: int
    """H"""


class Kept(NamedTuple):
    """What stays of one matrix of slots, before it is written in any number of bits."""

    rows: Tensor
    """[S, T] kept numbers, or [n] where slots keep different numbers of channels: row after row."""
    counts: Tensor | None = None
    """[S] int64: how many every slot kept, where that differs."""
    pruned: Pruned | None = None
    """Masks and what stands for the rest; `starts` is not set yet."""
    channels: Tensor | None = None
    """int16 [H, T], where all slots of a head kept the same."""


class Chosen(ABC):
    """The decision for one layer of one sequence."""

    @abstractmethod
    def keys(self, slots: Slots) -> Kept:
        """What stays of the keys."""

    def values(self, slots: Slots) -> Kept:
        """What stays of the values."""
        return Kept(slots.values)


class Width(NamedTuple):
    """What one row of a packed matrix takes, in numbers and in bytes besides the numbers."""

    numbers: int
    """Kept numbers; the most that there can be where slots differ."""
    aside: float = 0
    """Bytes for masks, signs and statistics."""

    def bytes(self, bits: int, itemsize: int) -> float:
        """Bytes of a row, scales not counted."""
        whole = self.numbers * itemsize if bits == 16 else row_bytes(self.numbers, bits)
        return whole + self.aside


class Channels(ABC):
    """How channels are chosen. Subclasses are frozen dataclasses."""

    varies: bool = False
    """Whether slots of one head keep different numbers of channels."""
    per_slot: bool = False
    """Whether slots of one head keep different channels."""

    @property
    def window_dense(self) -> bool:
        """Whether the window's slots stay as they are."""
        return False

    @property
    def exact_again(self) -> bool:
        """Whether recovered slots give up the same channels again and recover to the same."""
        return True

    def queries_needed(self, length: int) -> int:
        """How many of the last queries the choice depends on."""
        return 0

    @abstractmethod
    def choose(self, view: LayerView, selection: Selection, like: PackedBlock | None) -> Chosen:
        """The decision, the same as for `like` where that is given."""

    @abstractmethod
    def widths(self, key_dim: int, value_dim: int, itemsize: int) -> tuple[Width, Width]:
        """Of a row of keys and of a row of values."""

    def head_bytes(self, key_dim: int) -> int:
        """Bytes that a head takes once in every block it is part of."""
        return 0


class _Everything(Chosen):
    def keys(self, slots: Slots) -> Kept:
        return Kept(slots.keys)


@dataclass(frozen=True)
class AllChannels(Channels):
    """Every channel of every slot."""

    def choose(self, view: LayerView, selection: Selection, like: PackedBlock | None) -> Chosen:
        return _Everything()

    def widths(self, key_dim: int, value_dim: int, itemsize: int) -> tuple[Width, Width]:
        return Width(key_dim), Width(value_dim)


def packed_part(block: Block | None) -> PackedBlock | None:
    """A packed part of a prefix, where it has one: constants of heads are the same in all of them."""
    parts = () if block is None else parts_of(block)
    return next((part for part in parts if isinstance(part, PackedBlock)), None)


def window_queries(view: LayerView, count: int) -> Tensor:
    """[H, G·n, D] fp32: the last n queries of every KV head's group."""
    queries = view.queries[:, max(0, view.queries.shape[1] - count) :].detach().float()
    return queries.reshape(view.keys.shape[0], -1, queries.shape[-1])


def check_finite(numbers: Tensor, layer: int, kind: str) -> None:
    """Raise ModelError where a number cannot be packed."""
    if not numbers.numel():
        return
    # The two extremes take one pass, and NaN is both of them.
    if not all(bool(extreme.isfinite()) for extreme in numbers.aminmax()):
        raise ModelError(
            f"The {kind} of layer {layer} contain infinities or NaN, which no packed form can hold. Check the prompt "
            "without compression; a model in float16 may need bfloat16 or float32."
        )


def dropped(ratio: float, dim: int) -> int:
    """⌊λD⌋; decimal fractions are not exact in binary, and 0.29 of 100 are 29."""
    return math.floor(ratio * dim + 1e-9)
