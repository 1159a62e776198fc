"""Similarity of the queries of an observation window. ApertureKV, App. F: Eq. 18-20."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import normalize

from winnow.diagnostics.pairs import mean_over_pairs


def mean_cosine(queries: Tensor) -> float | None:
    """Mean cosine of the pairs of different queries [Hq, w, D] of a head, mean over the heads; None for one query."""
    directions = normalize(queries.float(), dim=-1)
    return mean_over_pairs((directions @ directions.transpose(1, 2)).double())
