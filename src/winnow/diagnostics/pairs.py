"""Means over pairs."""

from __future__ import annotations

from torch import Tensor


def mean_over_pairs(matrices: Tensor) -> float | None:
    """Mean of symmetric matrices [..., n, n] without their diagonals; None where n = 1, which has no pairs."""
    count = matrices.shape[-1]
    if count < 2:
        return None
    diagonals = matrices.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return float(((matrices.sum(dim=(-2, -1)) - diagonals) / (count * (count - 1))).mean())
