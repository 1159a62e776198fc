"""From the attention of decoding steps to scores: Equations 1 and 2 of the HeadKV paper.

A step is a forward pass of one token and yields one token of the answer, the first of them from the last token of the
prompt. Its attention weights [Hq, n] come layer by layer and are reduced at once; what is kept of a step is [Hq] per
layer. Every step of the answer counts: the paper's sum ends at N only because its answer is as long as the needle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from winnow.estimate.errors import NeedleError
from winnow.estimate.needle.prompt import Prompt, Span
from winnow.estimate.needle.settings import NeedleKind


class Tally(ABC):
    """Scores [L, Hq] of one run."""

    def __init__(self, prompt: Prompt, layers: int) -> None:
        """layers: how many layers `see` will be called for in every step."""
        self.prompt = prompt
        self.layers = layers
        self._step: dict[int, Tensor] = {}
        self._total: Tensor | None = None

    def see(self, layer: int, weights: Tensor) -> None:
        """Attention weights [Hq, n] of a step's token in a layer, over everything it sees."""
        self._step[layer] = self.reduced(weights)

    def count(self, token: int) -> None:
        """The step yielded this token, which is part of the answer.

        Raises NeedleError where a layer did not show its weights.
        """
        if len(self._step) != self.layers:
            raise NeedleError(
                f"Only {len(self._step)} of {self.layers} full-attention layers exposed their attention: this model "
                "does not use transformers' attention interface."
            )
        step = self.gained(torch.stack([self._step[layer] for layer in range(self.layers)]), token)
        self._step = {}
        self._total = step if self._total is None else self._total + step

    def scores(self) -> Tensor:
        """[L, Hq] float64 on the CPU, sums over the steps divided by N. For runs with a step."""
        assert self._total is not None
        return self._total.to("cpu", torch.float64) / self.prompt.span.length

    @abstractmethod
    def reduced(self, weights: Tensor) -> Tensor:
        """[Hq] of what a step's score needs of weights [Hq, n]."""

    @abstractmethod
    def gained(self, reduced: Tensor, token: int) -> Tensor:
        """[L, Hq] of what the heads gain, times N, from the layers' [L, Hq] and the generated token."""


class CopyTally(Tally):
    """Eq. 1: 1/N where the position of highest weight lies in the needle and holds the token that is generated."""

    def reduced(self, weights: Tensor) -> Tensor:
        """The positions of highest weight."""
        return weights.argmax(dim=-1)

    def gained(self, reduced: Tensor, token: int) -> Tensor:
        """1 or 0."""
        span = self.prompt.span
        copied = torch.zeros(len(self.prompt.tokens), dtype=torch.float64, device=reduced.device)
        copied[span.inside] = (self.prompt.tokens[span.inside] == token).to(copied)
        # Tokens after the prompt are generated ones and no part of the needle.
        inside = reduced < len(copied)
        return copied[reduced.clamp(max=len(copied) - 1)] * inside


class MassTally(Tally):
    """Eq. 2: 1/N of the weights of those of the N positions of highest weight that lie in the right answer."""

    def reduced(self, weights: Tensor) -> Tensor:
        """The sums of those weights."""
        return mass_in_span(weights, self.prompt.span)

    def gained(self, reduced: Tensor, token: int) -> Tensor:
        """The sums, whatever the token."""
        return reduced.double()


def mass_in_span(weights: Tensor, span: Span) -> Tensor:
    """Weights [Hq, n] -> [Hq]: of the N highest weights of a head, the sum of those inside the span."""
    highest, positions = weights.topk(span.length, dim=-1)
    return highest.masked_fill((positions < span.start) | (positions >= span.stop), 0.0).sum(dim=-1)


def tally_for(kind: NeedleKind, prompt: Prompt, layers: int) -> Tally:
    """Eq. 1 for R, Eq. 2 for ER and R2."""
    return (CopyTally if kind is NeedleKind.R else MassTally)(prompt, layers)
