"""Levels of 5 and 6 bits as the kernels read them, of one group of inputs after another.

Of a block of outputs and a group of inputs, first come the low four bits, as torch packs weights of 4 bits: of each
input in turn, the outputs of both halves of the block to a byte. Then come the bits above, of both halves and of a few
inputs to a byte (native/linear/avx512/levels.hpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.kernels.formats.entries import GROUP
from winnow.kernels.native_args import LINEAR_OUTPUTS

_LOW, _FOUR = 4, 15
"""Bits that lie as those of weights that have no others, and all of them."""
_BESIDE = 2
"""Inputs whose bytes of high bits lie beside each other."""


class LevelPlanes(NamedTuple):
    """The order of a weight's levels."""

    bits: int

    def pack(self, levels: Tensor, packed: Tensor) -> None:
        """Writes levels [O, I], uint8, to packed [O, I · bits / 8]; O and I are whole blocks and groups."""
        low, high = self._planes(packed)
        first, second = self._halves(levels)
        low.copy_((first & _FOUR).bitwise_or_(second << _LOW))
        found: Tensor | None = None
        for lowest, levels_there in self._sharing(levels >> _LOW):
            bits = levels_there << lowest
            found = bits if found is None else found.bitwise_or_(bits)
        assert found is not None
        high.copy_(found)

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse: [O, I · bits / 8] -> [O, I], uint8."""
        low, high = self._planes(packed)
        levels = torch.empty(len(packed), packed.shape[1] * 8 // self.bits, dtype=torch.uint8, device="cpu")
        first, second = self._halves(levels)
        torch.bitwise_and(low, _FOUR, out=first)
        torch.bitwise_right_shift(low, _LOW, out=second)
        for lowest, levels_there in self._sharing(levels):
            levels_there.bitwise_or_((high << (8 - lowest - self._high) >> (8 - self._high)) << _LOW)
        return levels

    @property
    def _high(self) -> int:
        """Bits above the low ones."""
        return self.bits - _LOW

    @property
    def _places(self) -> int:
        """Pairs of inputs that share a byte of high bits."""
        return 4 // self._high

    def _planes(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        """Bytes of low bits, as `_halves`, and of high bits, as `_sharing`."""
        groups = packed.view(len(packed) // LINEAR_OUTPUTS, -1, GROUP * LINEAR_OUTPUTS * self.bits // 8)
        low, high = groups.split_with_sizes([bits * GROUP * LINEAR_OUTPUTS // 8 for bits in (_LOW, self._high)], dim=2)
        halves = low.unflatten(2, (GROUP, -1)).permute(0, 3, 1, 2)
        return halves, high.unflatten(2, (-1, LINEAR_OUTPUTS // 4, _BESIDE, 2))

    def _halves(self, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Levels [O, I] -> those of the first and of the second half of each block's outputs [O/B, B/2, I/32, 32]."""
        first, second = levels.unflatten(1, (-1, GROUP)).unflatten(0, (-1, 2, LINEAR_OUTPUTS // 2)).unbind(1)
        return first, second

    def _sharing(self, levels: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Levels [O, I] -> where their bits in a byte begin, and those levels [O/B, I/32, bytes, B/4, beside, 2]."""
        inputs = levels.unflatten(1, (-1, GROUP // self._places // _BESIDE, self._places, _BESIDE))
        places = inputs.unflatten(0, (-1, 2, LINEAR_OUTPUTS // 4, 2)).permute(6, 1, 0, 4, 5, 2, 7, 3)
        for place, halves in enumerate(places):
            for half, found in enumerate(halves):
                yield 4 - 4 * (place % 2) + 2 * (place // 2) + self._high * half, found
