"""Weights of 6 bits: linear layers that keep a file's 64 levels."""

from __future__ import annotations

from torch import Tensor

from winnow.kernels.linear import FINE_GROUP
from winnow.models.high_bits import HighBitsLinear
from winnow.models.levels import Levels


class Int6Linear(HighBitsLinear):
    """A linear layer whose weight has 6 bits a value, with a scale for every 16 inputs of an output."""

    bits = 6

    @staticmethod
    def scales_shape(outputs: int, inputs: int) -> tuple[int, ...]:
        """Scales [I/16, O]."""
        return inputs // FINE_GROUP, outputs

    @staticmethod
    def write_scales(scales: Tensor, levels: Levels) -> None:
        assert levels.middle == 32
        assert levels.offsets is None
        scales.copy_(levels.steps.mT)

    def scaled(self, levels: Tensor, scales: Tensor) -> Tensor:
        return levels.unflatten(1, (-1, FINE_GROUP)).mul_(scales.mT[..., None]).flatten(1)
