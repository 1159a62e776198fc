"""SnapKV: LLM Knows What You Are Looking for Before Generation (Li et al. 2024, arXiv 2404.14469).

With the aggregation of DefensiveKV: Taming the Fragility of KV Cache Eviction in LLM Inference (Feng et al. 2025, arXiv
2510.13334).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from winnow.errors import MethodError
from winnow.parameters import check_choice, check_count, check_number, check_odd, meaning
from winnow.score import on_gpu
from winnow.score.base import Scorer
from winnow.score.diversity import diversified
from winnow.score.window import (
    Over,
    Pool,
    Reduce,
    heads_in_parts,
    keep_window,
    peaks,
    pool_tokens,
    reduce_group,
    window_blocks,
    window_mass,
)
from winnow.view import LayerView, last_queries

Aggregate = Literal["mean", "defensive"]
PoolFirst = bool | Literal["queries"]


@dataclass(frozen=True)
class SnapKV(Scorer):
    """Scores tokens by the attention that the last `window` queries pay them, pooled over neighbors.

    The window itself is always kept. With `diversify`, its queries vote after ApertureKV's query diversification, which
    strengthens what they do not have in common. With over="prefix", they attend only to the tokens before the window.
    aggregate="defensive" takes the most that any of these queries pays instead of the mean, but for no token less than
    the mean of these peaks over the head's tokens: what is not asked for now may be asked for later.

    The defaults are those of HeadKV, CoKV and ApertureKV for every method that they compare. AdaKV's release has
    window=32; kvpress has window=64, kernel=5, pool="avg", pool_first=True. CoKV's Algorithm 2 prints
    pool_first="queries".
    """

    window: int = field(default=8, metadata=meaning("number of last prompt tokens, which vote and are always kept"))
    kernel: int = field(default=7, metadata=meaning("width of the pooling over neighboring tokens; odd, 1 for none"))
    pool: Pool = field(default="max", metadata=meaning("how neighbors are pooled: max or avg"))
    reduce: Reduce = field(
        default="mean", metadata=meaning("how the query heads of a KV head are reduced: mean, max or sum")
    )
    pool_first: PoolFirst = field(
        default=False,
        metadata=meaning(
            "pools before the reduction instead of after it: false (after it), true (every query head), or queries "
            "(every query of every head)"
        ),
    )
    diversify: float = field(
        default=0.0, metadata=meaning("λ of ApertureKV's query diversification: 0 for none, at most 0.5 in the paper")
    )
    over: Over = field(
        default="visible",
        metadata=meaning("keys that the window attends to: visible (all that it sees), or prefix (those before it)"),
    )

    aggregate: Aggregate = field(
        default="mean",
        metadata=meaning("votes of the window's queries: mean, or defensive (their maximum, but at least its mean)"),
    )

    def __post_init__(self) -> None:
        check_count(self, "window", 1)
        check_number(self, "diversify", 0)
        check_choice(self, "aggregate", ("mean", "defensive"))
        check_choice(self, "over", ("visible", "prefix"))
        check_odd(self, "kernel")
        check_choice(self, "pool", ("max", "avg"))
        check_choice(self, "reduce", ("mean", "max", "sum"))
        check_choice(self, "pool_first", (False, True, "queries"))
        if self.aggregate == "defensive" and self.pool_first is not False:
            raise MethodError("SnapKV: aggregate=defensive pools every query's votes already; leave pool_first out.")

    @property
    def guaranteed(self) -> int:
        return self.window

    def queries_needed(self, length: int) -> int:
        return min(self.window, length)

    def __call__(self, view: LayerView) -> Tensor:
        heads, length, _ = view.keys.shape
        if length <= self.window:
            return view.keys.new_full((heads, length), torch.inf, dtype=torch.float32)
        if self.diversify:
            view = view._replace(queries=diversified(last_queries(view.queries, self.window), self.diversify))
        sums = self.aggregate == "mean" and self.pool_first != "queries"
        # Sums are found on a GPU without a matrix of what every query pays.
        parts = [view] if sums and on_gpu.serves(view) else heads_in_parts(view, self.window)
        return keep_window(torch.cat([self._of_heads(part) for part in parts]), self.window)

    def _of_heads(self, view: LayerView) -> Tensor:
        """[H, N - w]: the tokens before the window."""
        absent = None if view.absent is None else view.absent[:, : view.keys.shape[1] - self.window]
        return self._mean(view, absent) if self.aggregate == "mean" else self._defensive(view, absent)

    def _mean(self, view: LayerView, absent: Tensor | None) -> Tensor:
        """[H, N - w] from m[t] = 1/w Σ_i A[i, t], per query head."""
        if self.pool_first == "queries":
            return reduce_group(self._pooled_votes(view, absent), self.reduce)
        votes = window_mass(view, self.window, self.over) / self.window
        if self.pool_first:
            absent = None if absent is None else absent[:, None]
            return reduce_group(pool_tokens(votes, self.kernel, self.pool, absent), self.reduce)
        return pool_tokens(reduce_group(votes, self.reduce), self.kernel, self.pool, absent)

    def _pooled_votes(self, view: LayerView, absent: Tensor | None) -> Tensor:
        """[H, G, N - w]: the same with every A[i] pooled first; absent columns are [H, N - w]."""
        absent = None if absent is None else absent[:, None, None]
        heads, length, _ = view.keys.shape
        votes = view.keys.new_zeros((heads, view.queries.shape[0] // heads, length - self.window), dtype=torch.float32)
        for attention in window_blocks(view, self.window, self.over):
            votes += pool_tokens(attention, self.kernel, self.pool, absent).sum(dim=2)
        return votes / self.window

    def _defensive(self, view: LayerView, absent: Tensor | None) -> Tensor:
        """[H, N - w] from m[t] = max_i A[i, t] of pooled rows, and at least its mean over the tokens of a head."""
        highest = peaks(window_blocks(view, self.window, self.over), self.kernel, self.pool, absent)
        scores = reduce_group(highest, self.reduce)
        if absent is None:
            return scores.clamp(min=scores.mean(dim=1, keepdim=True))
        held = (~absent).sum(dim=1, keepdim=True)
        return scores.clamp(min=scores.masked_fill(absent, 0).sum(dim=1, keepdim=True) / held.clamp(min=1))
