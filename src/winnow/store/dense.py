"""Slots as they are: D key and Dv value entries in the model's dtype."""

from __future__ import annotations

from dataclasses import dataclass

from winnow.kernels.formats import DenseBlock
from winnow.select import Selection
from winnow.store.base import OFFSET_BYTES, POSITION_BYTES, Cost, Earlier, LayerShape, Store, gathered
from winnow.view import LayerView


@dataclass(frozen=True)
class Dense(Store):
    """Keys and values of the kept slots, unchanged, one after another: [S, D] and [S, Dv]."""

    def pack(self, view: LayerView, selection: Selection, window: int, earlier: Earlier | None = None) -> DenseBlock:
        """The selected rows, gathered. The result never shares memory with the view's keys and values."""
        return dense_block(view, selection)

    def cost(self, shape: LayerShape) -> Cost:
        """(D + Dv) entries a slot."""
        return Cost(
            OFFSET_BYTES * (shape.heads + 1), (shape.key_dim + shape.value_dim) * shape.itemsize + POSITION_BYTES
        )


def dense_block(view: LayerView, selection: Selection) -> DenseBlock:
    """Copies of the selected slots as they are."""
    return DenseBlock(*gathered(view, selection), selection.offsets)
