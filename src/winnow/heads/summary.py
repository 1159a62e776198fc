"""A table of head scores in a few numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch

from winnow.heads.compare import top_heads
from winnow.heads.scores import HeadScores


class TopHead(NamedTuple):
    """One of the most important heads."""

    layer: int
    head: int
    score: float


class Summary(NamedTuple):
    """The figures of a table."""

    low: float
    mean: float
    high: float
    total: float
    zero: float
    """Share of the heads whose score is exactly 0."""
    negative: float
    """Share of the heads whose score is below 0."""
    half: int | None
    """The number of highest heads that hold half of the sum of all positive scores; None without positive scores."""
    top: tuple[TopHead, ...]


def summarize(table: HeadScores, top: int = 10) -> Summary:
    """The summary, with so many of the most important heads."""
    values = table.values
    return Summary(
        low=values.min().item(),
        mean=values.mean().item(),
        high=values.max().item(),
        total=values.sum().item(),
        zero=(values == 0).double().mean().item(),
        negative=(values < 0).double().mean().item(),
        half=_half(table),
        top=tuple(TopHead(layer, head, values[layer, head].item()) for layer, head in top_heads(table, top)),
    )


def _half(table: HeadScores) -> int | None:
    positive = table.values.clamp(min=0).flatten().sort(descending=True).values
    if not positive[0] > 0:
        return None
    held = positive.cumsum(0)
    return 1 + int(torch.searchsorted(held, held[-1] / 2))
