"""Random eviction: the floor that every method has to beat."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.parameters import check_count, meaning
from winnow.score.base import Scorer
from winnow.view import LayerView

_STRIDE = 1_000_003
"""Distance between the seeds of neighboring user seeds; more than any model has layers."""


@dataclass(frozen=True)
class Random(Scorer):
    """Uniform random scores, the same for the same seed, layer and shape on every device."""

    seed: int = field(default=0, metadata=meaning("seed of the draw; layers draw independently"))

    def __post_init__(self) -> None:
        check_count(self, "seed", 0)

    def __call__(self, view: LayerView) -> Tensor:
        generator = torch.Generator().manual_seed((self.seed * _STRIDE + view.layer) % (1 << 63))
        return torch.rand(view.keys.shape[:2], generator=generator, dtype=torch.float32).to(view.keys.device)
