"""The whole cache, nothing evicted: what every method is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.score.base import Scorer
from winnow.view import LayerView


@dataclass(frozen=True)
class Full(Scorer):
    """Gives every token the same score, for a budget that keeps them all."""

    def __call__(self, view: LayerView) -> Tensor:
        heads, length, _ = view.keys.shape
        return view.keys.new_zeros((heads, length), dtype=torch.float32)
