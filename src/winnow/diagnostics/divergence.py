"""Redundancy of heads before anything is kept: divergences between their token scores. ApertureKV, App. B: Fig. 5."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.allocate.raba import distributions, jensen_shannon
from winnow.score.diversity import diversified
from winnow.score.window import window_mass
from winnow.view import LayerView, last_queries


def diversified_attention(view: LayerView, window: int, strength: float) -> Tensor:
    """[Hq, N - w]: attention to the tokens before the window, mean over its queries after their diversification.

    Eq. 8-12 with λ = `strength`, and the mean of Eq. 13.
    """
    spread = view._replace(queries=diversified(last_queries(view.queries, window), strength))
    return (window_mass(spread, window, "prefix") / window).flatten(0, 1)


def head_divergence(view: LayerView, window: int, strength: float) -> Tensor:
    """[Hq, Hq] float64 on the CPU: JSD in nats of the score distributions of every two query heads (Eq. 13, 15).

    A prompt that is no longer than the window has no tokens before it, and nothing to differ in: 0.
    """
    heads, outside = view.queries.shape[0], view.keys.shape[1] - window
    if outside <= 0:
        return torch.zeros(heads, heads, dtype=torch.float64, device="cpu")
    return jensen_shannon(distributions(diversified_attention(view, window, strength))).clamp(min=0).cpu()
