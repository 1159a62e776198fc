"""The promise of every store: a form of kept slots, and what it costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.heads import HeadScores
from winnow.kernels.formats import Block
from winnow.select import Selection
from winnow.transfers import sent
from winnow.view import LayerView

OFFSET_BYTES = 8
"""A head of a block remembers its first slot as one int64."""
POSITION_BYTES = 4
"""A kept slot remembers its position as one int32."""


class LayerShape(NamedTuple):
    """Sizes of a layer that bytes depend on before any prompt is seen."""

    layer: int
    """Index among the compressed layers of the model, from 0."""
    heads: int
    """H, KV heads of the layer."""
    key_dim: int
    """D"""
    value_dim: int
    """Dv"""
    itemsize: int
    """Bytes of a number in the model's dtype."""
    window: int
    """Slots at the end of every head that the scorer keeps whatever happens."""
    length: int | None = None
    """Tokens of a sequence, which no head holds more of, where they are fewer than a store's `residual`."""


class Cost(NamedTuple):
    """Bytes of a layer as a line: fixed + slots·slot. Exact where all slots cost the same."""

    fixed: float
    """Bytes of the layer whatever it keeps: what dense window slots cost more than packed ones, constants of heads."""
    slot: float
    """Bytes of one more slot with its position, averaged over the heads."""


class Earlier(NamedTuple):
    """A block that an earlier part of the same sequence was packed to, and where its slots are in a view."""

    block: Block
    slots: Tensor
    """[H, M] int64: the slot of the block that each of the view's first M columns is, -1 where a column is absent."""


class Store(ABC):
    """Base of stores, which write the kept slots of one layer of one sequence. Subclasses are frozen dataclasses.

    A store never sees scores.
    """

    def queries_needed(self, length: int) -> int:
        """The number of last queries, of a prompt of `length` tokens, that the packed form depends on."""
        return 0

    def for_model(self, name: str, heads: tuple[int, ...]) -> Store:
        """The store for a particular model (bits per head); see `Allocator.for_model`."""
        return self

    def with_head_scores(self, scores: HeadScores) -> Store:
        """The store with the allocator's head scores, if its form depends on scores and it has none of its own."""
        return self

    @property
    def separable(self) -> bool:
        """True if every slot is written by itself, so that a block can take it over from an earlier one.

        Folding a tail into a prefix needs this: what was written once is never chosen, rounded or drawn again.
        """
        return True

    @property
    def appendable(self) -> bool:
        """True if all slots of an earlier block can be taken over together, with new ones behind them.

        Folding needs no more than that where nothing is evicted.
        """
        return self.separable

    @property
    def reads_written(self) -> bool:
        """True if `pack` reads the view's keys and values of slots that an earlier block packed, even if all stay.

        If it does not, they need not be recovered.
        """
        return True

    @property
    def residual(self) -> int:
        """The number of last slots of every head that stay as they are, whatever the scorer's window is."""
        return 0

    @abstractmethod
    def pack(self, view: LayerView, selection: Selection, window: int, earlier: Earlier | None = None) -> Block:
        """Copies of the selected slots of a layer, head after head.

        window: number of last positions of the view that are the scorer's window, which every head holds completely.
        earlier: the block that this store wrote of an earlier part of the same sequence. Its slots are taken over as
            they are written, if possible, and so are constants of heads (channel norms, kept channels).
        Raises ModelError if keys or values are not finite and the form cannot hold that.
        """

    @abstractmethod
    def cost(self, shape: LayerShape) -> Cost:
        """Expected bytes of a layer."""

    def bytes(self, view: LayerView, selection: Selection, window: int, earlier: Earlier | None = None) -> float:
        """Exact bytes of what `pack` would return, positions included; without packing, if they can be known."""
        held = self.pack(view, selection, window, earlier).bytes()
        return sum(held.values()) + POSITION_BYTES * len(selection.positions)


def gathered(view: LayerView, selection: Selection) -> tuple[Tensor, Tensor]:
    """The selected rows [S, D] of keys and [S, Dv] of values, head after head; they share no memory with the view's."""
    sides = view.keys.detach(), view.values.detach()
    heads, tokens, _ = view.keys.shape
    if len(selection.positions) == heads * tokens:
        keys, values = (side.clone(memory_format=torch.contiguous_format).flatten(0, 1) for side in sides)
        return keys, values
    device = view.keys.device
    head, token = selection.heads(device), sent(selection.positions, device)
    return sides[0][head, token], sides[1][head, token]
