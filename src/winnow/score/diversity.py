"""Query Diversification of ApertureKV (Mitigating the Echo Chamber Effect in KV Cache Compression), Eq. 8-11."""

from __future__ import annotations

import torch
from torch import Tensor


def diversified(queries: Tensor, strength: float) -> Tensor:
    """The part of every query that leaves the mean direction of its head's window, strengthened.

    q' = q + λ(q - (q·ū)ū), ū = the normalized mean of the window's queries. queries [Hq, w, D]; returns fp32. Queries
    whose mean is zero have no common direction: q' = (1 + λ)q.
    """
    queries = queries.float()
    common = torch.nn.functional.normalize(queries.mean(dim=1, keepdim=True), dim=-1)
    residual = queries - (queries * common).sum(dim=-1, keepdim=True) * common
    return queries + strength * residual
