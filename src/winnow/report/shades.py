"""Shades of scores: one rule for pictures and for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.heads.scores import HeadScores

# Negative scores within this share of the largest are measurement noise around zero, no direction of their own.
_NOISE = 0.02
# Scores whose mean is this low in their range would leave a linear scale almost empty.
_SKEWED = 0.2


class ShadeScale(NamedTuple):
    """Scores in [low, high] as levels in [0, 1]."""

    low: float
    high: float
    power: float
    """level = ((score - low) / (high - low)) ** power; 0.5 where a few heads are far above all others."""
    signed: bool
    """Zero is in the middle, and means neither."""

    def levels(self, values: Tensor) -> Tensor:
        """Any shape, the same shape."""
        reach = self.high - self.low
        return ((values - self.low) / reach).clamp(0, 1) ** self.power if reach else torch.ones_like(values)


def scale_of(tables: Sequence[HeadScores]) -> ShadeScale:
    """The scale on which tables can be shown beside each other."""
    values = torch.cat([table.values.flatten() for table in tables])
    low, high = values.min().item(), values.max().item()
    most = max(abs(low), abs(high))
    if low < -_NOISE * most and high > _NOISE * most:
        return ShadeScale(-most, most, 1.0, signed=True)
    start = 0.0 if low >= -_NOISE * most else low
    skewed = (values.mean().item() - start) < _SKEWED * (high - start)
    return ShadeScale(start, high, 0.5 if skewed else 1.0, signed=False)
