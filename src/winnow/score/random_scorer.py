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

_TOKEN_STRIDE = 2_654_435_761
"""Distance between the seeds of folds, by tokens: 2³² over the golden ratio. torch's generator heeds 32 bits of a seed,
and modulo 2³² no two folds of a million tokens come as close to each other as the layers of a model."""


@dataclass(frozen=True)
class Random(Scorer):
    """Draws uniform random scores: the same for one seed, layer and shape on every device; every fold draws again."""

    seed: int = field(default=0, metadata=meaning("seed of the draw; layers draw independently"))

    def __post_init__(self) -> None:
        check_count(self, "seed", 0)

    def __call__(self, view: LayerView) -> Tensor:
        seed = self.seed * _STRIDE + view.layer
        if view.positions is not None:  # the same columns would win at every fold, and stay forever
            seed += view.tokens * _TOKEN_STRIDE
        generator = torch.Generator().manual_seed(seed % (1 << 63))
        scores = torch.rand(view.keys.shape[:2], generator=generator, dtype=torch.float32, device="cpu")
        return scores.to(view.keys.device)
