"""Tables of head scores from a few numbers."""

from __future__ import annotations

import torch

from winnow.heads import HeadScores


def table(values: object = ((1.0, 2.0), (3.0, 4.0)), method: str = "cokv", **facts) -> HeadScores:
    return HeadScores(torch.tensor(values, dtype=torch.float64), method, **facts)
