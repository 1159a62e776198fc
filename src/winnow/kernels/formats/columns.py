"""Channels that all slots of a head keep (ThinK): int16 [H, T], ascending; entries hold T numbers of every slot."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.kernels.formats.schema import ASCENDING, Rule, Side, within


def take_columns(rows: Tensor, channels: Tensor, head: Tensor) -> Tensor:
    """Rows [n, D] of heads [n] -> the numbers [n, T] that stay."""
    return rows.gather(1, channels.to(torch.int64)[head])


def spread_columns(kept: Tensor, channels: Tensor, head: Tensor, dim: int) -> Tensor:
    """Kept numbers [n, T] of heads [n] -> rows [n, dim]; channels that are gone are zero."""
    return kept.new_zeros(len(kept), dim).scatter_(1, channels.to(torch.int64)[head], kept)


def columns_rule(side: Side, channels: Tensor, dim: int) -> Rule:
    """Channels ascend below `dim`, as many of every head, so none comes twice and there are no more than `dim`."""
    return side.rule("channels", channels, torch.int16, (side.heads, None), (within(0, dim), ASCENDING))
