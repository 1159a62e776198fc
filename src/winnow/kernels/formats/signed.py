"""Signed integers all of which are in use.

Those of b bits reach from -2^(b-1) to 2^(b-1) - 1. The scale max|x| / (2^(b-1) - 1) never uses the lowest. Here the
number m of the largest size meets it: the scale is m / -2^(b-1) and has the sign of -m, as in llama.cpp's q4_0. Steps
of 4 bits are an eighth finer, and squares of errors a quarter smaller; a number of the other sign that is nearly as
large as m is cut off by less than a step. Bytes and kernels stay the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.kernels.formats.bits import pack_rows
from winnow.kernels.formats.entries import Entries, in_groups, inverse_scales, largest_integer


def signed(numbers: Tensor, bits: int, dtype: torch.dtype, group: int = 0) -> Entries:
    """Rows [n, T] -> signed integers, with a scale for every row, or for every `group` neighboring columns of it."""
    grouped = in_groups(numbers, group) if group else numbers[:, None]
    scales = _scales(grouped, bits, dtype)
    integers = (grouped * inverse_scales(scales)[..., None]).round_()
    integers = integers.clamp_(lowest_integer(bits), largest_integer(bits)).to(torch.int8)
    packed = pack_rows(integers.flatten(1)[:, : numbers.shape[1]], bits)
    return Entries(packed, bits, scales if group else scales[:, 0], group=group)


def signed_scales(numbers: Tensor, bits: int, dtype: torch.dtype, group: int = 0) -> Tensor:
    """Scales of rows [n, T]: [n], or [n, ceil(T / group)] with one for every `group` neighboring columns."""
    scales = _scales(in_groups(numbers, group) if group else numbers[:, None], bits, dtype)
    return scales if group else scales[:, 0]


def lowest_integer(bits: int) -> int:
    """The integer that the number of the largest size meets."""
    return -largest_integer(bits) - 1


def _scales(groups: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Scales [n, m] of groups [n, m, T]."""
    if not groups.shape[-1]:
        return groups.new_zeros(groups.shape[:-1], dtype=dtype)
    least, most = groups.aminmax(dim=-1)
    # A power of two: exact on every device. Of two as large, the one below zero counts.
    return (torch.where(most > -least, most, least) / lowest_integer(bits)).to(dtype)
