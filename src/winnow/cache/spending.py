"""What the layers of a sequence took of a budget in bytes, so that what one leaves over goes to those after it."""

from __future__ import annotations

from winnow.allocate import Allocation
from winnow.cache.prefix import Prefix


class Spending:
    """Bytes taken so far, per row, by the layers before the current one; layers come in their order."""

    def __init__(self) -> None:
        self._taken: dict[int, float] = {}

    def rest(self, row: int, layer: int, allocation: Allocation) -> Allocation:
        """The allocation, where this layer's bytes are its share of all that is left."""
        if allocation.bytes is None:
            return allocation
        if layer == 0:
            self._taken[row] = 0.0
        shares = allocation.bytes
        left = sum(shares) - self._taken.get(row, 0.0)
        own = left * shares[layer] / sum(shares[layer:])
        return allocation._replace(bytes=(*shares[:layer], own, *shares[layer + 1 :]))

    def add(self, row: int, prefix: Prefix) -> None:
        """A layer was compressed."""
        self._taken[row] = self._taken.get(row, 0.0) + sum(prefix.bytes().values())
