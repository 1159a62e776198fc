"""Splitting rows into the channels that stay and what stands for the others, whichever kernels serve it."""

from __future__ import annotations

from torch import Tensor

from winnow.kernels import pruning_native, pruning_reference
from winnow.kernels.pruning_reference import Rule, Scale, Split, Statistic

__all__ = ["Rule", "Scale", "Split", "Statistic", "split"]


def split(rows: Tensor, rule: Rule, statistic: Statistic, signed: bool, scale: Scale | None = None) -> Split:
    """Finite rows [S, D] split by a rule; without a scale the size of a number is its magnitude."""
    serving = pruning_native if pruning_native.supports(rows) else pruning_reference
    return serving.split(rows, rule, statistic, signed, scale)
