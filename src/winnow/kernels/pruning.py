"""Splitting rows into the channels that stay and what stands for the others, whichever kernels serve it."""

from __future__ import annotations

from typing import Protocol

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

__all__ = [
    "KeepRule",
    "PrunedRows",
    "SaliencyScale",
    "SegmentRule",
    "Split",
    "Statistic",
    "prune_rows",
    "prune_segments",
    "split_rows",
]


class Split(Protocol):
    """Rows of some slots that are about to be split, wherever they lie: sizes are magnitudes, over norms if given."""

    def __call__(
        self,
        rule: KeepRule | SegmentRule,
        statistic: Statistic,
        signed: bool,
        inverse_norms: Tensor | None = None,
    ) -> PrunedRows: ...


def split_rows(
    rows: Tensor,
    head: Tensor,
    rule: KeepRule | SegmentRule,
    statistic: Statistic,
    signed: bool,
    inverse_norms: Tensor | None = None,
) -> PrunedRows:
    """Finite rows [S, D] of heads [S] split by a rule; with inverse norms [H, D] their sizes are saliencies."""
    scale = None if inverse_norms is None else SaliencyScale(inverse_norms, head)
    if not isinstance(rule, SegmentRule):
        return prune_rows(rows, rule, statistic, signed, scale)
    if scale is None:
        raise ValueError("segments of heads need the norms of heads")
    return prune_segments(rows, rule, statistic, signed, scale)


def prune_rows(
    rows: Tensor, rule: KeepRule, statistic: Statistic, signed: bool, scale: SaliencyScale | None = None
) -> PrunedRows:
    """Finite rows [S, D] split by a rule; without a scale the size of a number is its magnitude."""
    serving = pruning_native if pruning_native.supports(rows) else pruning_reference
    return serving.prune_rows(rows, rule, statistic, signed, scale)
