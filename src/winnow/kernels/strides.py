"""Sizes and strides of tensors, by which arguments of kernels are remembered."""

from __future__ import annotations

import torch
from torch import Tensor

Shape = tuple[torch.Size, tuple[int, ...]]
"""Sizes and strides of a tensor."""


def shape_of(tensor: Tensor) -> Shape:
    """Sizes and strides of a tensor."""
    return tensor.shape, tensor.stride()


def has_heads_together(shape: Shape) -> bool:
    """True for [R, N, H, D] where a token's heads lie behind each other, and each one's channels beside each other."""
    (_, _, heads, dim), (_, _, head, channel) = shape
    return (channel == 1 or dim == 1) and (head == dim or heads == 1)
