"""Bounds of what linear layers lose where the native kernels round numbers for many rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from support.instruction_sets import IN_WHOLE_NUMBERS
from winnow.kernels import native
from winnow.kernels.linear import multiplies_many

FEW_ROWS = 32
"""Rows up to which numbers are multiplied as they are, wherever it is; but for AVX2 and 4 bits."""
ROUNDED = 2**-8
"""Relative error of a number that bfloat16 does not hold, at the most: half of what is between two of them."""
TOGETHER, MOST_INPUT, MOST_WEIGHT, MOST_BYTE, MOST_WHOLE = 64, 8191, 4095, 127, 32767
"""Numbers that share a scale where they become whole ones, and the largest of them: of 16 bits, of inputs and weights;
of bytes; and of inputs of 16 bits that meet levels."""


def lost_by_rounding(inputs: Tensor, weight: Tensor, bits: int = 16) -> Tensor:
    """[..., O] the most that products of inputs [..., I] with a weight [O, I] lose; zero where nothing is rounded.

    bits: of the weight as it is stored.
    """
    lost = torch.zeros(*inputs.shape[:-1], len(weight)).double()
    rows = inputs.shape[:-1].numel()
    of_levels = native.isa() == "avx2" and bits == 4
    if (rows <= FEW_ROWS and not of_levels) or not multiplies_many(inputs.dtype):
        return lost
    if native.isa() in IN_WHOLE_NUMBERS and not of_levels:
        return _lost_by_whole_numbers(inputs, weight)
    if bits == 16:
        return lost
    if native.isa() == "amx":
        # A number of a scale, and maybe a middle, is rounded to bfloat16; whole numbers of 8 bits are held as they are.
        return lost if bits == 8 else inputs.double().abs() @ weight.double().abs().T * ROUNDED
    # Half a step of each input, but for what the quotient by a step is rounded.
    (_, largest), (weights, _) = _in_blocks(inputs), _in_blocks(weight)
    most = MOST_WHOLE if of_levels and rows <= FEW_ROWS else MOST_BYTE
    return largest / most * (0.5 + 1e-4) @ weights.T


def as_steps(inputs: Tensor, steps: int = MOST_BYTE) -> Tensor:
    """[..., I] fp64, what inputs are taken for: of 64 beside each other, so many steps are the largest."""
    blocks = pad(inputs.float(), (0, -inputs.shape[-1] % TOGETHER)).unflatten(-1, (-1, TOGETHER))
    largest = blocks.abs().amax(-1, keepdim=True)
    most = torch.full_like(largest, steps)  # not a Python number, whose quotient is a product with an inverse
    found = (blocks * torch.where(largest > 1e-30, most / largest, 0)).round().double() * largest.double() / steps
    return found.flatten(-2)[..., : inputs.shape[-1]]


def _lost_by_whole_numbers(inputs: Tensor, weight: Tensor) -> Tensor:
    """Half a step of each input and of each weight."""
    (inputs, largest_input), (weight, largest_weight) = _in_blocks(inputs), _in_blocks(weight)
    half_input, half_weight = largest_input / MOST_INPUT / 2, largest_weight / MOST_WEIGHT / 2
    return inputs @ half_weight.T + half_input @ weight.T + TOGETHER * half_input @ half_weight.T


def _in_blocks(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Sums and maxima of the sizes of numbers that share a scale."""
    sizes = pad(numbers.double(), (0, -numbers.shape[-1] % TOGETHER)).abs().unflatten(-1, (-1, TOGETHER))
    return sizes.sum(-1), sizes.amax(-1)
