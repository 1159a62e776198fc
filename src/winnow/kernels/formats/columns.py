"""Channels that all slots of a head keep (ThinK): int16 [H, T], ascending; entries hold T numbers of every slot."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.kernels.formats.tensors import Side


def take_columns(rows: Tensor, channels: Tensor, head: Tensor) -> Tensor:
    """Rows [n, D] of heads [n] -> the numbers [n, T] that stay."""
    return rows.gather(1, channels.to(torch.int64)[head])


def spread_columns(kept: Tensor, channels: Tensor, head: Tensor, dim: int) -> Tensor:
    """Kept numbers [n, T] of heads [n] -> rows [n, dim]; channels that are gone are zero."""
    return kept.new_zeros(len(kept), dim).scatter_(1, channels.to(torch.int64)[head], kept)


def check_columns(side: Side, channels: Tensor, dim: int) -> None:
    """Raise ValueError unless channels are below `dim`, as many of every head."""
    side.check("channels", channels, torch.int16, (side.heads, None))
    if channels.numel() and (int(channels.min()) < 0 or int(channels.max()) >= dim):
        raise ValueError(f"channels must be in 0 ... {dim - 1}")
