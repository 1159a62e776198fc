"""What a store promises: how a kept slot is written, and what it costs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from winnow.kernels.interface import PrefixBlock
from winnow.select import Selection


class Store(ABC):
    """Writes the kept slots of one layer of one sequence. A store never sees scores."""

    @abstractmethod
    def pack(self, keys: Tensor, values: Tensor, selection: Selection) -> PrefixBlock:
        """Copies of the selected slots, head after head, from keys [H, N, D] and values [H, N, Dv]."""

    @abstractmethod
    def bytes_per_slot(self, head_dim: int, value_dim: int, itemsize: int) -> float:
        """Bytes that one slot takes in the packed form, without its position."""
