"""Splitting rows into the channels that stay and what stands for the others, whichever kernels serve it."""

from __future__ import annotations

from torch import Tensor

from winnow.kernels import pruning_native, pruning_reference
from winnow.kernels.pruning_reference import (
    KeepRule,
    PrunedRows,
    SaliencyScale,
    SegmentRule,
    Statistic,
    prune_segments,
)

__all__ = ["KeepRule", "PrunedRows", "SaliencyScale", "SegmentRule", "Statistic", "prune_rows", "prune_segments"]


def prune_rows(
    rows: Tensor, rule: KeepRule, statistic: Statistic, signed: bool, scale: SaliencyScale | None = None
) -> PrunedRows:
    """Finite rows [S, D] split by a rule; without a scale the size of a number is its magnitude."""
    serving = pruning_native if pruning_native.supports(rows) else pruning_reference
    return serving.prune_rows(rows, rule, statistic, signed, scale)
