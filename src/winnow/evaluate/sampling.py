"""The next token of an answer: the most likely one, or one that is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

Choice = Callable[[Tensor], int]
"""The next token for logits [V]."""


def most_likely(logits: Tensor) -> int:
    """The token of the largest logit, the first of several."""
    return int(most_likely_of_each(logits))


def most_likely_of_each(logits: Tensor) -> Tensor:
    """The same of every row: logits [..., V] -> tokens [...]"""
    # Not argmax, which takes a CPU three times as long in 16 bits.
    return logits.max(-1).indices


def among(choice: Choice, allowed: Callable[[], Tensor]) -> Choice:
    """A choice that takes only what is allowed at the moment: [n] bools for the first n tokens; none behind them."""

    def chosen(logits: Tensor) -> int:
        kept = allowed()[: len(logits)].to(logits.device)
        left = torch.full_like(logits, -torch.inf)
        left[: len(kept)] = logits[: len(kept)].masked_fill(~kept, -torch.inf)
        return choice(left)

    return chosen


@dataclass(frozen=True)
class Sampling:
    """Settings under which tokens are chosen, as `generate` knows them."""

    temperature: float = 0.0
    """0 takes the most likely token; 1 draws as the model says, less is closer to 0."""
    top_p: float = 1.0
    """Tokens are drawn from the fewest whose probabilities sum to so much."""
    seed: int | None = None
    """Start of the random numbers, or None for another one every time."""

    def choice(self) -> Choice:
        """A chooser of tokens, with random numbers of its own that begin at the seed."""
        return _Draw(self) if self.temperature else most_likely


GREEDY = Sampling()


class _Draw:
    """Draws on the CPU, so that a seed means the same on every device."""

    def __init__(self, sampling: Sampling) -> None:
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed)
        self._warp = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
        if sampling.top_p < 1:
            self._warp.append(TopPLogitsWarper(sampling.top_p))

    def __call__(self, logits: Tensor) -> int:
        row = logits.to("cpu", torch.float64)[None]
        # With the largest at 0 no temperature is too small to divide by. What stands before the token does not count:
        # these processors look at the scores only.
        warped = self._warp(torch.empty((1, 0), dtype=torch.int64, device="cpu"), row - row.max())
        return int(torch.multinomial(warped.softmax(-1).to(torch.float32), 1, generator=self._random))
