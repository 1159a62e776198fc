"""K-VEC: Coverage-Driven KV Cache Eviction for Efficient and Improved Inference of LLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from winnow.parameters import SLACK, check_choice, check_count, check_number, check_odd, meaning
from winnow.score import on_gpu
from winnow.score.base import Ranking, Scorer
from winnow.score.window import Pool, attention_blocks, keep_window, pool_tokens
from winnow.select import best_tokens
from winnow.view import Extra, LayerView

Criterion = Literal["std", "entropy"]


class Votes(NamedTuple):
    """Results of one pass of attention over the wide window, for the tokens outside the window."""

    near: Tensor
    """[H, N - O] mean over the last O queries and the query group (Eq. 2)."""
    wide: Tensor
    """[H, N - O] the same over the last O' queries (Eq. 5)."""
    importance: Tensor
    """[N - O] mean over the last O queries of the maximum over all query heads (Eq. 7); [H, N - O] where columns are
    different tokens."""


@dataclass(frozen=True)
class KVEC(Scorer):
    """Spreads SnapKV's votes over heads and layers, so that fewer tokens are lost in all of them.

    Heads: the `wide_heads` heads of a layer whose votes are least focused (lowest standard deviation over the tokens,
    Eq. 4, or highest entropy, Table 6f) vote with the last `wide_window` queries instead (Eq. 5). Layers: tokens that
    few earlier layers kept gain novelty·I·(1 - coverage), I being the importance to any head of the layer (Eq. 6-9).
    The best tokens by a head's own votes always fill a `sure` share of its slots outside the window (Eq. 10).

    In long generations, coverage counts the earlier layers that still hold a token when it is folded, and a token's
    importance is that to the heads that hold it.

    novelty=0 leaves only cross-head coverage, wide_heads=0 only cross-layer coverage; with both, it is SnapKV.
    """

    window: int = field(default=16, metadata=meaning("O, last tokens of the prompt that vote and are always kept"))
    wide_window: int = field(default=32, metadata=meaning("O', last tokens that vote in the least focused heads"))
    wide_heads: int = field(default=3, metadata=meaning("δ, number of heads of a layer that vote with the wide window"))
    novelty: float = field(default=1.0, metadata=meaning("λ, weight of tokens that earlier layers did not keep"))
    sure: float = field(
        default=0.25, metadata=meaning("β, share of a head's slots outside the window that its own votes fill")
    )
    kernel: int = field(default=7, metadata=meaning("width of the pooling over neighboring tokens; odd, 1 for none"))
    pool: Pool = field(default="max", metadata=meaning("how neighbors are pooled: max or avg"))
    criterion: Criterion = field(
        default="std", metadata=meaning("sign of unfocused heads: lowest std of their votes, or highest entropy")
    )

    def __post_init__(self) -> None:
        check_count(self, "window", 1)
        check_count(self, "wide_window", self.window)
        check_count(self, "wide_heads", 0)
        check_number(self, "novelty", 0)
        check_number(self, "sure", 0, 1)
        check_odd(self, "kernel")
        check_choice(self, "pool", ("max", "avg"))
        check_choice(self, "criterion", ("std", "entropy"))

    @property
    def guaranteed(self) -> int:
        return self.window

    @property
    def extras(self) -> Extra:
        return Extra.COVERAGE

    def queries_needed(self, length: int) -> int:
        return min(self.wide_window, length)

    def __call__(self, view: LayerView) -> Tensor:
        return self.rank(view).scores

    def rank(self, view: LayerView) -> Ranking:
        """Scores are P' of Eq. 9; the basis is P, which `refine` keeps the best of."""
        heads, length, _ = view.keys.shape
        if length <= self.window:
            return Ranking(view.keys.new_full((heads, length), torch.inf, dtype=torch.float32))
        votes = self._votes(view)
        absent = None if view.absent is None else view.absent[:, : length - self.window]
        priority = pool_tokens(votes.near, self.kernel, self.pool, absent)
        if self.wide_heads:
            # the δ least focused heads; equal ones by their index
            unfocused = _focus(priority, self.criterion, absent).argsort(stable=True)[: self.wide_heads]
            gaps = None if absent is None else absent[unfocused]
            priority[unfocused] = pool_tokens(votes.wide[unfocused], self.kernel, self.pool, gaps)
        focus = votes.importance * (1 - self._coverage(view))
        if absent is not None:
            priority = priority.masked_fill(absent, -torch.inf)
        return Ranking(keep_window(priority + self.novelty * focus, self.window), keep_window(priority, self.window))

    def refine(self, ranking: Ranking, slots: Tensor, view: LayerView) -> Tensor:
        """P' with the best ⌊β·b⌋ tokens of every head by P kept for sure."""
        if ranking.basis is None:
            return ranking.scores
        sure = ((slots - self.window).clamp(min=0).double() * self.sure + SLACK).floor().long() + self.window
        return ranking.scores.masked_fill(best_tokens(ranking.basis, sure), torch.inf)

    def _votes(self, view: LayerView) -> Votes:
        """One pass over the last O' queries, or over all of a shorter prompt."""
        if on_gpu.serves(view):
            return self._votes_on_a_gpu(view)
        heads, length, _ = view.keys.shape
        near = view.keys.new_zeros((heads, length), dtype=torch.float32)
        wide = torch.zeros_like(near)
        importance = torch.zeros_like(near if view.positions is not None else near[0])
        tokens = None if view.positions is None else view.positions.unique(return_inverse=True)[1]
        for block in attention_blocks(view, self.wide_window):
            visible = block.attention.shape[-1]
            wide[:, :visible] += block.attention.mean(dim=1).sum(dim=1)
            inside = block.attention[:, :, max(0, length - self.window - block.first) :]
            near[:, :visible] += inside.mean(dim=1).sum(dim=1)
            importance[..., :visible] += _strongest(inside, tokens)
        outside = length - self.window
        rows = min(self.wide_window, length)
        return Votes(near[:, :outside] / self.window, wide[:, :outside] / rows, importance[..., :outside] / self.window)

    def _votes_on_a_gpu(self, view: LayerView) -> Votes:
        """The same, and never a matrix of probabilities."""
        length = view.keys.shape[1]
        rows, outside = min(self.wide_window, length), length - self.window
        window, inside = on_gpu.normalized(view, rows), rows - self.window
        near, wide = window.paid(outside, since=inside).mean(dim=1), window.paid(outside).mean(dim=1)
        if view.positions is None:
            importance = window.paid_most(outside, since=inside)
        else:
            which, columns = _columns_of_tokens(view.positions)
            importance = window.paid_most(columns.shape[1], inside, columns)[which[:, :outside]]
        return Votes(near / self.window, wide / rows, importance / self.window)

    def _coverage(self, view: LayerView) -> Tensor | float:
        """Layers before this one that kept a token in any head, over l + 1 (Eq. 6): [N - O] or [H, N - O]."""
        if view.coverage is None:
            return 0.0
        return view.coverage[..., : view.keys.shape[1] - self.window].float() / (view.layer + 1)


def _focus(priority: Tensor, criterion: Criterion, absent: Tensor | None) -> Tensor:
    """Measure of how well the votes [H, T] of a head tell its tokens apart, more for better: [H] float64.

    The standard deviation over the tokens (Eq. 4), or -H(p) = Σ p·ln p with the votes scaled to a sum of 1. A head that
    votes for nothing tells no more than one whose votes are all equal, by both.
    """
    votes = priority.double()
    if criterion == "std":
        return votes.std(dim=1, correction=0) if absent is None else _spread(votes, absent)
    votes = votes + torch.finfo(votes.dtype).tiny
    votes = votes if absent is None else votes.masked_fill(absent, 0)
    shares = votes / votes.sum(dim=1, keepdim=True)
    return torch.special.xlogy(shares, shares).sum(dim=1)


def _spread(votes: Tensor, absent: Tensor) -> Tensor:
    """[H]: the standard deviation of a head's votes [H, T] over the tokens that it holds."""
    held = (~absent).sum(dim=1, keepdim=True).clamp(min=1)
    apart = (votes - votes.masked_fill(absent, 0).sum(dim=1, keepdim=True) / held).masked_fill(absent, 0)
    return (apart.square().sum(dim=1) / held[:, 0]).sqrt()


def _columns_of_tokens(positions: Tensor) -> tuple[Tensor, Tensor]:
    """[H, N] the number, from 0, of the token that each column is, and int32 [H, tokens] the column of every token.

    positions: [H, N], -1 where absent. Where a head does not hold a token its column is -1.
    """
    tokens, which = positions.unique(return_inverse=True)
    numbers = torch.arange(which.shape[1], dtype=torch.int32, device=positions.device).expand_as(which)
    columns = numbers.new_full((len(which), len(tokens)), -1)
    return which, columns.scatter_(1, which, numbers)


def _strongest(attention: Tensor, tokens: Tensor | None) -> Tensor:
    """Attention [H, G, r, M] summed over the queries, of each the maximum over all query heads: [M].

    tokens: [H, N], which token each column is, as a number from 0; None: the same in every head. With it [H, M]: the
    maximum over the heads that hold a column's token.
    """
    if tokens is None:
        return attention.flatten(0, 1).amax(dim=0).sum(dim=0)
    which = tokens[:, : attention.shape[-1]]
    paid = attention.amax(dim=1).transpose(0, 1).flatten(1)  # [r, H·M]
    best = paid.new_zeros(len(paid), int(tokens.max()) + 1)
    best.scatter_reduce_(1, which.flatten().expand_as(paid), paid, "amax")
    return best.sum(dim=0)[which]
