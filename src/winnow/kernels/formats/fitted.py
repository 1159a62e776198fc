"""Scales that fit a row of numbers instead of spanning it.

Signed integers of b bits reach from -2^(b-1) to 2^(b-1) - 1. With the scale max|x| / (2^(b-1) - 1) the lowest of them
is never used, and a single large number sets the step of all others. Here the number m of the largest size meets the
lowest integer, so that the scale takes the sign of -m, as in llama.cpp's q4_0; then smaller steps are tried, which cut
off m but round the rest more finely, and the one of the least squared error is taken. Bytes and kernels stay the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.kernels.formats.bits import pack_rows
from winnow.kernels.formats.entries import Entries, in_groups, inverse_scales, largest_integer

SHARES = (1.0, 0.93, 0.86, 0.79)
"""Steps that are tried, in units of the one that reaches the number of the largest size."""


def fitted(numbers: Tensor, bits: int, dtype: torch.dtype, group: int = 0) -> Entries:
    """Rows [n, T] -> signed integers on fitted scales: of every row, or of every `group` neighboring columns."""
    grouped = in_groups(numbers, group) if group else numbers[:, None]
    scales = _fitted(grouped, bits, dtype)
    integers = _integers(grouped, scales, bits).to(torch.int8).flatten(1)[:, : numbers.shape[1]]
    return Entries(pack_rows(integers, bits), bits, scales if group else scales[:, 0], group=group)


def fitted_scales(numbers: Tensor, bits: int, dtype: torch.dtype, group: int = 0) -> Tensor:
    """Scales of rows [n, T]: [n], or [n, ceil(T / group)] with one for every `group` neighboring columns."""
    scales = _fitted(in_groups(numbers, group) if group else numbers[:, None], bits, dtype)
    return scales if group else scales[:, 0]


def lowest_integer(bits: int) -> int:
    """The integer that the number of the largest size meets."""
    return -largest_integer(bits) - 1


def _fitted(groups: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Scales [n, m] of groups [n, m, T]; the larger one among equals."""
    if not groups.shape[-1]:
        return groups.new_zeros(groups.shape[:-1], dtype=dtype)
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))[..., 0]
    best, least = groups.new_zeros(largest.shape, dtype=dtype), torch.full_like(largest, torch.inf)
    for share in SHARES:
        scales = (largest * (share / lowest_integer(bits))).to(dtype)
        errors = _integers(groups, scales, bits).mul_(scales.float()[..., None]).sub_(groups).square_().sum(-1)
        best, least = torch.where(errors < least, scales, best), torch.minimum(errors, least)
    return best


def _integers(groups: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Integers next to groups [n, m, T] over scales [n, m], in fp32."""
    integers = (groups * inverse_scales(scales)[..., None]).round_()
    return integers.clamp_(lowest_integer(bits), largest_integer(bits))
