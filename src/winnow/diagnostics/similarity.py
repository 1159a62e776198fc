"""Similarity of the queries of an observation window. ApertureKV, App. F: Eq. 18-20; Fig. 4 and 8."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import normalize

from winnow.diagnostics.pairs import mean_over_pairs


def query_cosines(queries: Tensor) -> Tensor:
    """[Hq, w, w] float64 on the CPU: cosines of every two queries [Hq, w, D] of a head."""
    directions = normalize(queries.float(), dim=-1)
    return (directions @ directions.transpose(1, 2)).double().cpu()


def mean_cosine(queries: Tensor) -> float | None:
    """Mean cosine of the pairs of different queries [Hq, w, D] of a head, mean over the heads; None for one query."""
    return mean_over_pairs(query_cosines(queries))
