"""TriAttention: Efficient Long Reasoning with Trigonometric KV Compression (Mao et al. 2026, arXiv 2604.04921)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.errors import MethodError
from winnow.heads import QueryCenters
from winnow.parameters import check_count, meaning
from winnow.score.base import Ranking, Scorer
from winnow.score.blocks import tokens_at_once
from winnow.score.moments import moments_of, no_rotation
from winnow.view import Extra, LayerView, QueryMoments, Rotation

_CHUNK = 2048
"""Keys converted to fp32 at once on a CPU."""
_FARTHEST = 1 << 24
"""Positions beyond it are no whole numbers in fp32."""
_LEAST_SPREAD = 1e-6
"""Least standard deviation to divide by: tokens that all score alike stay alike."""


@dataclass(frozen=True)
class TriAttention(Scorer):
    """Scores tokens by the attention of the mean query from later positions, and higher for longer keys.

    Queries before their rotation lie close to a center q̄ per query head. With pairs of channels f that turn by ω_f,
    key k at position p of N tokens, φ_f the angle between q̄_f and the key's pair k_f before its rotation,

        z = mean over δ of Σ_f |q̄_f|·|k_f|·cos(ω_f·(N + δ - p) + φ_f) + Σ_f (mean|q_f| - |q̄_f|)·|k_f|

    δ = 1, 2, 4, … `horizon`. The first term is the attention of the center, a trigonometric series in the distance. The
    second term stands for what queries do not have in common. z is standardized over the tokens of a query head, and a
    token's score is the largest of its group. By default, centers are those of all tokens so far after the `sinks`,
    which are always kept; they carry on through long generations, for which the method is meant (fold_every=128). With
    `centers`, as published, they are those of a calibration text, and the prompt's queries are not used.

    Raises HeadScoresError for a file that cannot be read.
    """

    sinks: int = field(
        default=4, metadata=meaning("first tokens, which are always kept and whose queries do not count")
    )
    horizon: int = field(default=65536, metadata=meaning("farthest distance after the text, by powers of 2"))
    centers: QueryCenters | None = field(
        default=None,
        metadata=meaning("centers of the model's queries, from winnow heads centers; none: those of the prompt"),
    )

    def __post_init__(self) -> None:
        if isinstance(self.centers, str | Path):
            object.__setattr__(self, "centers", QueryCenters.load(self.centers))
        if self.centers is not None and not isinstance(self.centers, QueryCenters):
            raise MethodError(f"TriAttention: centers must be a file of query centers, not {self.centers!r}.")
        check_count(self, "sinks", 0)
        check_count(self, "horizon", 1, _FARTHEST)

    @property
    def guaranteed(self) -> int:
        return self.sinks

    @property
    def extras(self) -> Extra:
        return Extra.ROTATION

    @property
    def accumulates(self) -> bool:
        return self.centers is None

    def moments_bytes(self, query_heads: int, dim: int) -> int:
        # pairs are fewer than channels: the most that it can be
        return 4 * query_heads * 2 * dim if self.centers is None else 0

    def queries_needed(self, length: int) -> int:
        return max(0, length - self.sinks) if self.centers is None else 0

    def __call__(self, view: LayerView) -> Tensor:
        """[H, N] fp32. Raises MethodError for a view without its rotation."""
        return self.rank(view).scores

    def rank(self, view: LayerView) -> Ranking:
        """The scores, and the moments of all queries so far. Raises MethodError for a view without its rotation."""
        heads, length, _ = view.keys.shape
        if length <= self.sinks:
            return Ranking(view.keys.new_full((heads, length), torch.inf, dtype=torch.float32))
        counted = self._counted(view)
        absent = None if view.absent is None else view.absent[:, None, self.sinks :]
        scores = _standardized(self._series(view, counted), absent).amax(dim=1)
        carried = counted if self.centers is None else None
        return Ranking(F.pad(scores, (self.sinks, 0), value=torch.inf), moments=carried)

    def _counted(self, view: LayerView) -> QueryMoments:
        """Moments of the model's queries, or of those of the text so far."""
        if self.centers is None:
            return moments_of(view, self.sinks, scatter=False, sizes=True, owner="TriAttention")
        if view.rotation is None:
            raise no_rotation("TriAttention", view.layer)
        layers, heads, dim = self.centers.mean.shape
        if (layers, heads, dim) != (view.layers, view.queries.shape[0], view.queries.shape[-1]):
            raise MethodError(
                f"{self.centers} has {layers} layers of {heads} query heads of {dim} channels, but the model has "
                f"{view.layers} of {view.queries.shape[0]} of {view.queries.shape[-1]}; measure the model's own with "
                "winnow heads centers."
            )
        mean, sizes = (part[view.layer].to(view.keys.device) for part in (self.centers.mean, self.centers.sizes))
        return QueryMoments(self.centers.tokens, mean, sizes=sizes)

    def _series(self, view: LayerView, counted: QueryMoments) -> Tensor:
        """z [H, G, N - sinks] of the tokens after the sinks."""
        rotation, sizes = view.rotation, counted.sizes
        assert rotation is not None
        assert sizes is not None
        # R(N + δ)q̄·R(p)k is the series; keys come rotated, so nothing is undone
        center = counted.mean @ self._ahead(rotation, view.tokens).to(counted.mean).t()
        common = rotation.pair_sizes(counted.mean @ rotation.mean(0, 1).to(counted.mean).t())
        sizes = sizes[:, : common.shape[-1]]
        heads = view.keys.shape[0]
        linear = center.unflatten(0, (heads, -1))
        others = (sizes - common).unflatten(0, (heads, -1))
        parts = []
        for keys in view.keys[:, self.sinks :].split(tokens_at_once(view.keys, _CHUNK), dim=1):
            keys = keys.float()
            parts.append(linear @ keys.transpose(1, 2) + others @ rotation.pair_sizes(keys).transpose(1, 2))
        return torch.cat(parts, dim=-1)

    def _ahead(self, rotation: Rotation, tokens: int) -> Tensor:
        """[D, D]: mean of the rotations at 1, 2, 4, … `horizon` positions after the last of `tokens`."""
        steps = [1 << power for power in range(self.horizon.bit_length())]
        return torch.stack([rotation.mean(tokens + step, 1) for step in steps]).mean(dim=0)


def _standardized(series: Tensor, absent: Tensor | None) -> Tensor:
    """Values [H, G, T], less their mean over the tokens and over their standard deviation; 0 where `absent`."""
    gaps = torch.zeros_like(series[:, :1], dtype=torch.bool) if absent is None else absent
    held = (~gaps).sum(dim=-1, keepdim=True).clamp(min=1)
    apart = series - series.masked_fill(gaps, 0).sum(dim=-1, keepdim=True) / held
    apart = apart.masked_fill(gaps, 0)
    return apart / (apart.square().sum(dim=-1, keepdim=True) / held).sqrt().clamp(min=_LEAST_SPREAD)
