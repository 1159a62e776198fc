"""Weights of more than 4 bits in levels, which files have and Winnow's kernels alone read: linear layers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from winnow.kernels.linear import Weight, multiplies_many, outputs_together
from winnow.kernels.native_args import LINEAR_OUTPUTS
from winnow.models.int4 import Int4Linear
from winnow.models.level_planes import LevelPlanes
from winnow.models.levels import Levels
from winnow.models.quantized import QuantizedLinear
from winnow.models.room import Room


class HighBitsLinear(QuantizedLinear):
    """A linear layer whose weight has levels of a few bits: the low four as those of `Int4Linear`, and some above."""

    packed: nn.Parameter
    compiled_few = 128
    stored_names = ("packed", "scales")
    """[O, I · bits / 8] uint8, in the order of `LevelPlanes`, and scales."""
    bits: ClassVar[int]

    @classmethod
    def room_for(cls, shape: Sequence[int], dtype: torch.dtype, room: Room) -> list[Tensor]:
        *experts, outputs, inputs = shape
        packed = room.staying((*experts, outputs, inputs * cls.bits // 8), torch.uint8)
        return [packed, room.staying((*experts, *cls.scales_shape(outputs, inputs)), dtype)]

    @staticmethod
    @abstractmethod
    def scales_shape(outputs: int, inputs: int) -> tuple[int, ...]:
        """The shape of a weight's scales."""

    @staticmethod
    @abstractmethod
    def write_scales(scales: Tensor, levels: Levels) -> None:
        """Writes those of some outputs, whose levels are the file's."""

    @abstractmethod
    def scaled(self, levels: Tensor, scales: Tensor) -> Tensor:
        """Levels [o, I], less the one for zero, and scales of as many outputs, both in one dtype -> [o, I]."""

    @classmethod
    @torch.no_grad()
    def write_levels(cls, stored: Sequence[Tensor], part: slice, levels: Levels) -> None:
        """Writes the weights of some outputs, whole blocks, as they are."""
        packed, scales = stored
        cls.write_scales(scales[:, part], levels)
        LevelPlanes(cls.bits).pack(levels.levels, packed[part])

    @classmethod
    def shape_of(cls, stored: Sequence[Tensor]) -> tuple[int, int]:
        outputs, columns = stored[0].shape
        return outputs, columns * 8 // cls.bits

    @staticmethod
    def serves(shape: Sequence[int], dtype: torch.dtype) -> bool:
        """True if weights [..., O, I] of a model that computes in a dtype may have so many bits here.

        torch has no kernel for them. So they may where Winnow's are the faster ones and multiply many rows, too: else a
        weight of 8 bits, which is written out in less time, is the better one.
        """
        read = multiplies_many(dtype) and outputs_together(dtype) == LINEAR_OUTPUTS
        return read and Int4Linear.fits(shape)

    def compiled_weight(self) -> Weight:
        return Weight(self.parameter("packed"), self._parameters["bias"], self.parameter("scales"))

    def is_compiled(self) -> bool:
        return outputs_together(self.scales.dtype) == LINEAR_OUTPUTS

    def written_out(self, part: slice, dtype: torch.dtype) -> Tensor:
        levels = LevelPlanes(self.bits).unpack(self.packed[part]).view(torch.int8)
        return self.scaled(levels.sub_(1 << (self.bits - 1)).to(dtype), self.scales[:, part].to(dtype))
