"""Bounds of what linear layers lose where the native kernels round numbers for many rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from winnow.kernels import native
from winnow.kernels.linear import multiplies_many

FEW_ROWS = 32
"""Rows up to which numbers are multiplied as they are, wherever it is."""
TOGETHER, MOST_INPUT, MOST_WEIGHT = 64, 8191, 4095
"""Numbers that share a scale where they become whole ones, and the largest of them in inputs and in weights."""


def lost_by_rounding(inputs: Tensor, weight: Tensor, bits: int = 16) -> Tensor:
    """[..., O] the most that products of inputs [..., I] with a weight [O, I] lose; zero where nothing is rounded.

    bits: of the weight as it is stored.
    """
    rows = inputs.shape[:-1].numel()
    lost = torch.zeros(*inputs.shape[:-1], len(weight)).double()
    if rows <= FEW_ROWS or not multiplies_many(inputs.dtype):
        return lost
    if native.isa() == "avx2":
        return _lost_by_whole_numbers(inputs, weight)
    # Numbers of 4 bits, in fp32, are rounded to bfloat16; those of others are bfloat16.
    half_step = torch.finfo(torch.bfloat16).eps * (0.5 + 1e-6)
    return inputs.double().abs() @ weight.double().abs().T * half_step if bits == 4 else lost


def _lost_by_whole_numbers(inputs: Tensor, weight: Tensor) -> Tensor:
    """Half a step of each input and of each weight."""
    (inputs, largest_input), (weight, largest_weight) = _in_blocks(inputs), _in_blocks(weight)
    half_input, half_weight = largest_input / MOST_INPUT / 2, largest_weight / MOST_WEIGHT / 2
    return inputs @ half_weight.T + half_input @ weight.T + TOGETHER * half_input @ half_weight.T


def _in_blocks(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Sums and maxima of the sizes of numbers that share a scale."""
    sizes = pad(numbers.double(), (0, -numbers.shape[-1] % TOGETHER)).abs().unflatten(-1, (-1, TOGETHER))
    return sizes.sum(-1), sizes.amax(-1)
