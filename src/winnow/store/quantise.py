"""Numbers as small integers with scales, in the layouts of `winnow.kernels.packed.Entries`.

Scales are rounded to the model's dtype first, and numbers are quantised with the rounded scale, so that rounding it
costs nothing but a little clipping. What was quantised once is found again: packing recovered numbers per slot gives
the same integers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.kernels.bits import pack_rows
from winnow.kernels.packed import GROUP, Entries


def symmetric(numbers: Tensor, bits: int, dtype: torch.dtype) -> Entries:
    """Rows [n, T] -> signed integers with one scale per row (CoKV App. C.2).

    s = max|x| / q, q = 2^(bits - 1) - 1; stored is clip(round(x / s), -q, q). A row of zeros has scale 0.
    """
    most = (1 << (bits - 1)) - 1
    largest = numbers.abs().amax(1) if numbers.shape[1] else numbers.new_zeros(len(numbers))
    scales = (largest / most).to(dtype)
    # In place from here on: packing a prompt is memory traffic.
    integers = (numbers * _inverse(scales)[:, None]).round_().clamp_(-most, most)
    return Entries(pack_rows(integers.to(torch.int8), bits), bits, scales)


def grouped_by_slots(numbers: Tensor, bits: int, dtype: torch.dtype) -> Entries:
    """Rows [n, T], n a multiple of 32 -> unsigned integers, scale and zero per column of 32 rows (keys of KIVI)."""
    groups = numbers.view(-1, GROUP, numbers.shape[1])
    scales, zeros = _range(groups.amin(1), groups.amax(1), bits, dtype)
    integers = _unsigned(groups, scales[:, None], zeros[:, None], bits)
    return Entries(pack_rows(integers.view(numbers.shape), bits), bits, scales, zeros)


def grouped_by_channels(numbers: Tensor, bits: int, dtype: torch.dtype) -> Entries:
    """Rows [n, T] -> unsigned integers, scale and zero per 32 neighbouring columns of a row (values of KIVI)."""
    count, width = numbers.shape
    # The last group may be short: repeating its own last number changes neither its least nor its largest.
    missing = -width % GROUP
    full = torch.cat([numbers, numbers[:, -1:].expand(count, missing)], 1) if missing else numbers
    groups = full.view(count, -1, GROUP)
    scales, zeros = _range(groups.amin(2), groups.amax(2), bits, dtype)
    integers = _unsigned(groups, scales[..., None], zeros[..., None], bits)
    return Entries(pack_rows(integers.view(count, -1)[:, :width], bits), bits, scales, zeros)


def _range(least: Tensor, largest: Tensor, bits: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scale and zero of groups; the scale of a constant group is 0, and its zero is what it holds."""
    zeros = least.to(dtype)
    return ((largest - zeros.float()).clamp_(min=0) / ((1 << bits) - 1)).to(dtype), zeros


def _unsigned(numbers: Tensor, scales: Tensor, zeros: Tensor, bits: int) -> Tensor:
    """round((x - zero) / scale), as uint8."""
    integers = (numbers - zeros.float()).mul_(_inverse(scales)).round_()
    return integers.clamp_(0, (1 << bits) - 1).to(torch.uint8)


def _inverse(scales: Tensor) -> Tensor:
    """1 / s in fp32, and 0 where s is 0 or so small that its inverse is infinite."""
    scales = scales.float()
    return torch.where(scales >= torch.finfo(torch.float32).tiny, 1 / scales, 0.0)
