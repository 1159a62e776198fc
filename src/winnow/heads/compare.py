"""Agreement of two tables: overlap of their most important heads, and correlation of their ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from winnow.errors import HeadScoresError
from winnow.heads.scores import HeadScores


def top_overlap(a: HeadScores, b: HeadScores, share: float = 0.5, k: int | None = None) -> float:
    """|top-k(a) and top-k(b)| / k, between 0 and 1; by chance it is about k over the number of heads.

    k: how many heads; without it, the share of all, rounded down to at least one. Equal scores go to the lower layer
    and head. Raises HeadScoresError for tables of different shapes, and for a k or share that leaves none or too many.
    """
    _check_comparable(a, b)
    count = a.values.numel()
    if k is None:
        if not 0 < share <= 1:
            raise HeadScoresError(f"share must be above 0 and at most 1, not {share!r}.")
        k = max(1, int(share * count))
    if not 1 <= k <= count:
        raise HeadScoresError(f"k must be between 1 and the number of heads, {count}, not {k!r}.")
    return common_top(a.values, b.values, k)


def common_top(a: Tensor, b: Tensor, k: int) -> float:
    """|top-k(a) and top-k(b)| / k of scores of any one shape; equal scores go to the lower index."""
    return len(set(_top(a, k)) & set(_top(b, k))) / k


def rank_correlation(a: HeadScores, b: HeadScores) -> float:
    """Spearman's correlation over all heads, equal scores sharing their mean rank; NaN where a table is constant.

    Raises HeadScoresError for tables of different shapes.
    """
    _check_comparable(a, b)
    return spearman(a.values, b.values)


def spearman(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation of scores of any one shape; NaN where all of one are equal."""
    ranks = torch.stack([mean_ranks(a.flatten()), mean_ranks(b.flatten())])
    deviations = ranks - ranks.mean(dim=1, keepdim=True)
    spread = deviations.norm(dim=1).prod().item()
    return (deviations[0] @ deviations[1]).item() / spread if spread else math.nan


def top_heads(table: HeadScores, k: int) -> list[tuple[int, int]]:
    """(layer, head) of the k highest scores, highest first; equal scores go to the lower layer and head."""
    return [divmod(index, table.shape[1]) for index in _top(table.values, k)]


def mean_ranks(values: Tensor) -> Tensor:
    """[n] -> [n] ranks from 0; the mean of their places for equal values."""
    _, group, sizes = torch.unique(values, return_inverse=True, return_counts=True)
    after = sizes.cumsum(0)
    middle: Tensor = after - (sizes + 1).double() / 2  # double first: whole numbers become torch's default dtype
    return middle[group]


def _top(values: Tensor, k: int) -> list[int]:
    """Indices into the flattened values of the k highest, highest first."""
    return torch.argsort(values.flatten(), descending=True, stable=True)[:k].tolist()


def _check_comparable(a: HeadScores, b: HeadScores) -> None:
    if (a.shape, a.heads) != (b.shape, b.heads):
        raise HeadScoresError(
            f"{a} has {a.shape[0]}x{a.shape[1]} {a.heads} heads, {b} has {b.shape[0]}x{b.shape[1]} {b.heads} heads: "
            "only tables of the same heads compare; average query heads to KV heads with grouped() (--kv-heads)."
        )
