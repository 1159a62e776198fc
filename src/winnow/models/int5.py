"""Weights of 5 bits: linear layers that keep a file's 32 levels."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.models.high_bits import HighBitsLinear
from winnow.models.int4 import GROUP, write_scales
from winnow.models.levels import Levels


class Int5Linear(HighBitsLinear):
    """A linear layer whose weight has 5 bits a value, with a scale and a middle for every 32 inputs of an output."""

    bits = 5

    @staticmethod
    def scales_shape(outputs: int, inputs: int) -> tuple[int, ...]:
        """Scale and middle [I/32, O, 2]."""
        return inputs // GROUP, outputs, 2

    @staticmethod
    def write_scales(scales: Tensor, levels: Levels) -> None:
        write_scales(levels.steps, levels.at(16), scales)

    def scaled(self, levels: Tensor, scales: Tensor) -> Tensor:
        scale, middle = scales.permute(2, 1, 0)[..., None].unbind()
        return torch.addcmul(middle, levels.unflatten(1, (-1, GROUP)), scale).flatten(1)
