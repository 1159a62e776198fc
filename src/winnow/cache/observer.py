"""The contract of whoever watches layers being compressed."""

from __future__ import annotations

from typing import Protocol

from winnow.cache.prefix import Prefix
from winnow.view import LayerView


class Observer(Protocol):
    """Sees every row of every layer right after its compression, while its dense keys and values are at hand.

    Where layers share their slots, that is after the last one, and all are dense until then.
    """

    @property
    def queries(self) -> int:
        """Last queries of a row to see, however few the method asks for."""

    def see(self, view: LayerView, prefix: Prefix) -> None:
        """Take note of a view and of what became of it. Keep no tensor of the view: memory would grow by the layer."""
