"""Efficient Streaming Language Models with Attention Sinks (Xiao et al. 2023, arXiv 2309.17453)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.parameters import check_count, meaning
from winnow.score.base import Scorer
from winnow.view import LayerView


@dataclass(frozen=True)
class StreamingLLM(Scorer):
    """Keeps the first `sinks` tokens and, with the rest of the budget, the most recent ones, at least `recent`."""

    sinks: int = field(default=4, metadata=meaning("first tokens of the prompt that are always kept"))
    recent: int = field(default=0, metadata=meaning("last tokens of the prompt that are always kept"))

    def __post_init__(self) -> None:
        check_count(self, "sinks", 0)
        check_count(self, "recent", 0)

    @property
    def guaranteed(self) -> int:
        return self.sinks + self.recent

    @property
    def window(self) -> int:
        return self.recent

    def __call__(self, view: LayerView) -> Tensor:
        heads, length, _ = view.keys.shape
        # score[t] = t: the later, the better
        scores = torch.arange(length, dtype=torch.float32, device=view.keys.device)
        scores[: self.sinks] = torch.inf
        scores[max(0, length - self.recent) :] = torch.inf
        return scores.repeat(heads, 1)
