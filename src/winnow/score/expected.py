"""Expected Attention: KV Cache Compression by Estimating Attention from Future Queries Distribution.

Devoto et al. 2025, arXiv 2510.00636.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.parameters import check_choice, check_count, check_number, meaning
from winnow.score.base import Ranking, Scorer
from winnow.score.blocks import numbers_at_once
from winnow.score.moments import moments_of
from winnow.transfers import sent
from winnow.view import Extra, LayerView, QueryMoments

_BLOCK = 1 << 20
"""Numbers per query head, token and dimension to hold at once on a CPU (4 MiB in fp32): they should stay near it."""
_FARTHEST = 1 << 24
"""Positions after a prompt, at most; no model reads as many."""


class FutureQueries(NamedTuple):
    """The distribution of the queries to come, per query head."""

    mean: Tensor
    """[Hq, D] μ'."""
    covariance: Tensor | None
    """[Hq, D, D] Σ', or None where nobody wants it."""


@dataclass(frozen=True)
class ExpectedAttention(Scorer):
    """Scores tokens by the attention that queries of the next `future` positions are expected to pay them.

    Queries before their rotation are assumed to be normally distributed, with the mean μ and covariance Σ of the
    prompt's queries. R̄ is the mean rotation of the future positions. With μ' = R̄μ and Σ' = R̄ΣR̄ᵀ, per query head and
    with c = `scaling` (1/√D in most models)

        z[t] = c·k_t·μ' + c²/2·k_tᵀΣ'k_t,    s[t] = (mean over the group of softmax(z)[t] + ε)·‖v_t‖

    over the tokens after the `sinks`, which are always kept. The closed form cannot include the model's soft-capping
    and attention sinks. In long generations, μ and Σ are those of all tokens so far, kept or not: later queries add to
    them.
    """

    future: int = field(default=512, metadata=meaning("positions after the prompt over which rotations are averaged"))
    sinks: int = field(
        default=4, metadata=meaning("first tokens, which are always kept and whose queries do not count")
    )
    covariance: bool = field(default=True, metadata=meaning("use the spread of queries, not only their mean"))
    value_norm: bool = field(default=True, metadata=meaning("multiply by the norm of a token's value"))
    epsilon: float = field(
        default=0.0, metadata=meaning("ε, added before the multiplication (kvpress compares methods with 0.01)")
    )

    def __post_init__(self) -> None:
        check_count(self, "future", 1, _FARTHEST)
        check_count(self, "sinks", 0)
        check_choice(self, "covariance", (False, True))
        check_choice(self, "value_norm", (False, True))
        check_number(self, "epsilon", 0)

    @property
    def guaranteed(self) -> int:
        return self.sinks

    @property
    def extras(self) -> Extra:
        return Extra.ROTATION

    @property
    def accumulates(self) -> bool:
        return True

    def moments_bytes(self, query_heads: int, dim: int) -> int:
        return 4 * query_heads * dim * (1 + dim if self.covariance else 1)

    def queries_needed(self, length: int) -> int:
        return max(0, length - self.sinks)

    def __call__(self, view: LayerView) -> Tensor:
        """[H, N] fp32. Raises MethodError for a view without its rotation."""
        return self.rank(view).scores

    def rank(self, view: LayerView) -> Ranking:
        """The scores, and the moments of all queries so far. Raises MethodError for a view without its rotation."""
        heads, length, _ = view.keys.shape
        if length <= self.sinks:
            return Ranking(view.keys.new_full((heads, length), torch.inf, dtype=torch.float32))
        counted = moments_of(view, self.sinks, scatter=self.covariance, sizes=False, owner="ExpectedAttention")
        logits = _logits(view, self._future_queries(view, counted), self.sinks)
        if view.absent is not None:
            logits = logits.masked_fill(view.absent[:, None, self.sinks :], -torch.inf)
        scores = logits.softmax(dim=-1).mean(dim=1)
        if self.value_norm:
            scores = (scores + self.epsilon) * _norms(view.values[:, self.sinks :])
        return Ranking(F.pad(scores, (self.sinks, 0), value=torch.inf), moments=counted)

    def _future_queries(self, view: LayerView, counted: QueryMoments) -> FutureQueries:
        """μ' and Σ' of a text longer than the sinks."""
        assert view.rotation is not None
        rotation = view.rotation.mean(view.tokens, self.future)
        rotation = sent(rotation.to(counted.mean.dtype), counted.mean.device)
        mean = counted.mean @ rotation.t()
        if counted.scatter is None:
            return FutureQueries(mean, None)
        return FutureQueries(mean, rotation @ (counted.scatter / counted.number) @ rotation.t())


def _logits(view: LayerView, queries: FutureQueries, sinks: int) -> Tensor:
    """z [H, G, N - sinks] of the tokens after the sinks."""
    heads, _, dim = view.keys.shape
    group = queries.mean.shape[0] // heads
    linear = view.scaling * queries.mean.view(heads, 1, group, dim)
    quadratic = None
    if queries.covariance is not None:
        # [H, D, G·D]: keys are not repeated for the group
        quadratic = 0.5 * view.scaling**2 * queries.covariance.view(heads, group, dim, dim)
        quadratic = quadratic.transpose(1, 2).reshape(heads, dim, group * dim)
    logits = []
    step = max(1, numbers_at_once(view.keys.device, _BLOCK) // (heads * group * dim))
    for keys in view.keys[:, sinks:].split(step, dim=1):
        keys = keys.float()
        slope = linear if quadratic is None else (keys @ quadratic).unflatten(2, (group, dim)).add_(linear)
        # z = k·(c·μ' + c²/2·Σ'k)
        logits.append((slope @ keys[..., None]).squeeze(-1))
    return torch.cat(logits, dim=1).transpose(1, 2)


def _norms(values: Tensor) -> Tensor:
    """‖v‖ [H, n] of values [H, n, Dv]."""
    step = max(1, numbers_at_once(values.device, _BLOCK) // (values.shape[0] * values.shape[2]))
    return torch.cat([torch.linalg.vector_norm(block.float(), dim=-1) for block in values.split(step, dim=1)], dim=1)
