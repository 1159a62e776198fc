"""Tensors of a packed matrix: checked against each other, and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Side(NamedTuple):
    """The keys or the values of a block: what their tensors must agree with."""

    name: str
    """"keys" or "values"."""
    slots: int
    """S"""
    heads: int
    """H"""
    dtype: torch.dtype
    """The model's."""
    device: torch.device

    def check(self, what: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
        """Raise ValueError unless a tensor has this dtype and shape (None: any size) and lies flat beside the others.

        The kernels read raw memory.
        """
        fits = tensor.ndim == len(shape) and all(
            size is None or size == found for size, found in zip(shape, tensor.shape, strict=True)
        )
        if not fits or tensor.dtype != dtype:
            sizes = ["any" if size is None else size for size in shape]
            raise ValueError(f"{what} are {tensor.dtype} {list(tensor.shape)} and must be {dtype} {sizes}")
        if tensor.device != self.device or not tensor.is_contiguous():
            raise ValueError(f"{what} must be contiguous and on {self.device}")


def take_rows(rows: Tensor, slots: Tensor, sizes: Tensor | None) -> Tensor:
    """Rows of slots [n], in that order. sizes: [S] numbers of every row, where rows of different length lie flat."""
    if sizes is None:
        return rows[slots]
    lengths, starts = sizes[slots], (sizes.cumsum(0) - sizes)[slots]
    places = lengths.cumsum(0) - lengths
    index = torch.arange(int(lengths.sum()), device=rows.device) + (starts - places).repeat_interleave(lengths)
    return rows[index]


def cat_present(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """The tensors one after another; None where there are none."""
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(present) if present else None
