"""What a scorer sees and what it promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor


class LayerView(NamedTuple):
    """One sequence in one layer at the moment of compression (no padding, no batch axis)."""

    layer: int
    """Index among the compressed layers of the model, from 0."""
    layers: int
    """How many compressed layers the model has."""
    queries: Tensor
    """[Hq, n, D] queries of the *last* n tokens after RoPE; n = min(N, scorer.queries_needed(N))."""
    keys: Tensor
    """[H, N, D] keys after RoPE."""
    values: Tensor
    """[H, N, Dv] values."""
    scaling: float
    """Factor on q·k before the softmax."""
    softcap: float | None = None
    """Logits are softcap·tanh(logit/softcap) where the model does so."""
    sinks: Tensor | None = None
    """[Hq] extra logits in the softmax denominator where the model has them."""


class Scorer(ABC):
    """What is each token worth to each KV head?

    A scorer never sees storage and never decides how many tokens stay. Subclasses are frozen dataclasses.
    """

    @property
    def guaranteed(self) -> int:
        """Tokens per head that are kept whatever the budget (observation window, sinks): the least budget."""
        return 0

    @property
    def window(self) -> int:
        """Last tokens of the prompt that are always kept."""
        return 0

    def queries_needed(self, length: int) -> int:
        """How many of the last queries of a prompt of `length` tokens the scores depend on."""
        return 0

    @abstractmethod
    def __call__(self, view: LayerView) -> Tensor:
        """Scores [H, N] in fp32; higher is better, +inf means kept whatever happens. Never NaN."""

    def refine(self, scores: Tensor, slots: Tensor, view: LayerView) -> Tensor:
        """Scores once every head knows its slots ([H] int64); for scorers whose second stage needs them."""
        return scores
