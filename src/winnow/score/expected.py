"""Expected Attention: KV Cache Compression by Estimating Attention from Future Queries Distribution.

Devoto et al. 2025, arXiv 2510.00636.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.errors import MethodError
from winnow.parameters import check_choice, check_count, check_number, meaning
from winnow.score.base import Scorer
from winnow.view import Extra, LayerView, Rotation

_BLOCK = 1 << 20
"""Numbers per query head, token and dimension to hold at once (4 MiB in fp32): they should stay near the processor."""


class Moments(NamedTuple):
    """The distribution of queries, per query head."""

    mean: Tensor
    """[Hq, D] μ."""
    covariance: Tensor | None
    """[Hq, D, D] Σ, or None where nobody wants it."""


@dataclass(frozen=True)
class ExpectedAttention(Scorer):
    """Tokens are worth the attention that queries of the next `future` positions can be expected to pay them.

    Queries before their rotation are taken for normally distributed, with the mean μ and covariance Σ of the prompt's;
    R̄ is the mean rotation of the future positions. With μ' = R̄μ and Σ' = R̄ΣR̄ᵀ, per query head and with
    c = `scaling` (1/√D in most models)

        z[t] = c·k_t·μ' + c²/2·k_tᵀΣ'k_t,    s[t] = (mean over the group of softmax(z)[t] + ε)·‖v_t‖

    over the tokens after the `sinks`, which are always kept. The model's soft-capping and attention sinks have no
    place in the closed form.
    """

    future: int = field(default=512, metadata=meaning("positions after the prompt whose mean rotation queries take"))
    sinks: int = field(
        default=4, metadata=meaning("first tokens, which are always kept and whose queries do not count")
    )
    covariance: bool = field(default=True, metadata=meaning("count the spread of queries, not only their mean"))
    value_norm: bool = field(default=True, metadata=meaning("multiply by the norm of a token's value"))
    epsilon: float = field(
        default=0.0, metadata=meaning("ε, added before the multiplication (kvpress compares methods with 0.01)")
    )

    def __post_init__(self) -> None:
        check_count(self, "future", 1)
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

    def queries_needed(self, length: int) -> int:
        return max(0, length - self.sinks)

    def __call__(self, view: LayerView) -> Tensor:
        """[H, N] fp32. Raises MethodError for a view without its rotation."""
        heads, length, _ = view.keys.shape
        if length <= self.sinks:
            return view.keys.new_full((heads, length), torch.inf, dtype=torch.float32)
        logits = _logits(view, self._future_queries(view), self.sinks)
        scores = logits.softmax(dim=-1).mean(dim=1)
        if self.value_norm:
            scores = (scores + self.epsilon) * _norms(view.values[:, self.sinks :])
        return F.pad(scores, (self.sinks, 0), value=torch.inf)

    def _future_queries(self, view: LayerView) -> Moments:
        """μ' and Σ' of a prompt longer than the sinks."""
        if view.rotation is None:
            raise MethodError(
                f"ExpectedAttention needs the rotation of layer {view.layer}: give LayerView.rotation, as caches do."
            )
        length = view.keys.shape[1]
        queries = view.queries[:, -(length - self.sinks) :]
        mean, covariance = moments(queries, view.rotation, self.sinks, self.covariance)
        rotation = view.rotation.mean(length, self.future).to(mean)
        rotated = None if covariance is None else rotation @ covariance @ rotation.t()
        return Moments(mean @ rotation.t(), rotated)


def moments(queries: Tensor, rotation: Rotation, first: int, covariance: bool) -> Moments:
    """Mean and covariance of queries [Hq, n, D] at positions from `first` on, as they were before their rotation.

    Blocks of tokens are merged by their own means (Chan et al. 1979): one pass, and nothing cancels where queries are
    far from zero and close together.
    """
    heads, length, dim = queries.shape
    mean = queries.new_zeros((heads, dim), dtype=torch.float32)
    scatter = queries.new_zeros((heads, dim, dim), dtype=torch.float32) if covariance else None
    step = max(1, _BLOCK // (heads * dim))
    for start in range(0, length, step):
        block = rotation.inverse(queries[:, start : start + step], first + start)
        new, own = block.shape[1], block.mean(dim=1)
        apart = own - mean
        if scatter is not None:
            block = block - own[:, None]
            scatter += block.transpose(1, 2) @ block
            scatter += apart[:, :, None] * apart[:, None] * (start * new / (start + new))
        mean += apart * (new / (start + new))
    return Moments(mean, None if scatter is None else scatter / length)


def _logits(view: LayerView, queries: Moments, sinks: int) -> Tensor:
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
    for keys in view.keys[:, sinks:].split(max(1, _BLOCK // (heads * group * dim)), dim=1):
        keys = keys.float()
        slope = linear if quadratic is None else (keys @ quadratic).unflatten(2, (group, dim)).add_(linear)
        # z = k·(c·μ' + c²/2·Σ'k)
        logits.append((slope @ keys[..., None]).squeeze(-1))
    return torch.cat(logits, dim=1).transpose(1, 2)


def _norms(values: Tensor) -> Tensor:
    """‖v‖ [H, n] of values [H, n, Dv]."""
    step = max(1, _BLOCK // (values.shape[0] * values.shape[2]))
    return torch.cat([torch.linalg.vector_norm(block.float(), dim=-1) for block in values.split(step, dim=1)], dim=1)
