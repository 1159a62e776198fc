"""R-KV: Redundancy-aware KV Cache Compression for Reasoning Models (Cai et al. 2025, arXiv 2505.24133)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.parameters import check_choice, check_count, check_number, check_odd, meaning
from winnow.score.base import Scorer
from winnow.score.blocks import numbers_at_once
from winnow.score.window import Pool, keep_window, pool_tokens, strongest_prefix_attention
from winnow.transfers import sent
from winnow.view import LayerView

_BLOCK = 1 << 20
"""Similarities to hold at once on a CPU (4 MiB in fp32): they should stay near it."""
_FEWEST_ROWS = 16
_LEAST_NORM = 1e-8
"""A zero key resembles no other."""


@dataclass(frozen=True)
class RKV(Scorer):
    """Scores tokens by the attention of the last `window` queries, minus their similarity to other tokens in the cache.

        s = λ·I - (1 - λ)·R

    I is the attention over the tokens before the window, of the largest logit of the query group, pooled over
    neighbors. R is the softmax over the tokens of the mean cosine similarity of a key to all others. Every key leaves
    out the most recent of the keys that it resembles by more than `threshold`, so of similar tokens the last one stays.
    The method is meant for long generations (fold_every=128 in the paper). Its work is quadratic in the tokens that a
    head holds, its memory linear.
    """

    window: int = field(default=8, metadata=meaning("number of last tokens, which vote and are always kept"))
    balance: float = field(default=0.1, metadata=meaning("λ, the weight of importance against redundancy"))
    threshold: float = field(default=0.5, metadata=meaning("cosine above which keys count as similar"))
    kernel: int = field(default=7, metadata=meaning("width of the pooling over neighboring tokens; odd, 1 for none"))
    pool: Pool = field(default="max", metadata=meaning("how neighbors are pooled: max or avg"))

    def __post_init__(self) -> None:
        check_count(self, "window", 1)
        check_number(self, "balance", 0, 1)
        check_number(self, "threshold", 0, 1)
        check_odd(self, "kernel")
        check_choice(self, "pool", ("max", "avg"))

    @property
    def guaranteed(self) -> int:
        return self.window

    def queries_needed(self, length: int) -> int:
        return min(self.window, length)

    def __call__(self, view: LayerView) -> Tensor:
        heads, length, _ = view.keys.shape
        before = length - self.window
        if before <= 0:
            return view.keys.new_full((heads, length), torch.inf, dtype=torch.float32)
        absent = None if view.absent is None else view.absent[:, :before]
        important = pool_tokens(strongest_prefix_attention(view, self.window), self.kernel, self.pool, absent)
        redundant = redundancy(view, self.threshold)[:, :before]
        return keep_window(self.balance * important - (1 - self.balance) * redundant, self.window)


def redundancy(view: LayerView, threshold: float) -> Tensor:
    """R [H, N] fp32: a distribution over the tokens that a head holds; 0 where absent.

    A block of rows of the similarity matrix at a time, for all heads, so that no N x N matrix is ever held.
    """
    single = view.keys if view.keys.dtype != torch.float64 else view.keys.float()
    norms = torch.linalg.vector_norm(single, dim=-1, keepdim=True, dtype=torch.float32)
    keys = single / norms.clamp(min=_LEAST_NORM)  # in fp32, as norms are: no other copy of the keys
    heads, length, _ = keys.shape
    total = keys.new_zeros(heads, length)
    step = max(_FEWEST_ROWS, numbers_at_once(keys.device, _BLOCK) // (heads * length))
    for start in range(0, length, step):
        total += _similar(keys, start, min(start + step, length), threshold).sum(dim=1)
    mean = total / sent(view.counts.to(total.dtype), total.device)[:, None].clamp(min=1)
    return (mean if view.absent is None else mean.masked_fill(view.absent, -torch.inf)).softmax(dim=-1)


def _similar(keys: Tensor, start: int, stop: int, threshold: float) -> Tensor:
    """[H, r, N]: cosines of the unit keys `start` … `stop` - 1 to all of [H, N, D], without what does not count.

    A key does not count for itself, nor the last one that it resembles. Columns ascend in time.
    """
    cosines = keys[:, start:stop] @ keys.transpose(1, 2)
    rows = torch.arange(stop - start, device=keys.device)
    cosines[:, rows, rows + start] = 0
    columns = torch.arange(keys.shape[1], dtype=torch.float32, device=keys.device)
    last = torch.where(cosines > threshold, columns, -1).amax(dim=-1, keepdim=True).long()
    first = cosines[..., :1]  # stays what it is where a key resembles none
    return cosines.scatter(-1, last.clamp(min=0), torch.where(last < 0, first, 0))
