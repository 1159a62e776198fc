"""Head scores from a text that the model repeats: KVzip's head-level mode (Kim et al. 2025, arXiv 2505.23416).

A head is worth the most that any token of the text is worth to it while the model repeats the text. One reading and one
replay of one text are enough, where needles and coalitions need hundreds of prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.replay import Words, replay, words_of
from winnow.composition.names import method
from winnow.estimate.shape import table_shape
from winnow.estimate.split_half import SplitHalf
from winnow.evaluate.decoding import prefill
from winnow.score import KVzip


class Calibration(NamedTuple):
    """A text to repeat."""

    tokens: Tensor
    """[1, N] of its prompt."""
    first: int
    """The first token that is the text's: what a chat template puts before it tells nothing of heads."""


class RepeatedScores(NamedTuple):
    """Scores of heads, and those that each half of the tokens would have given."""

    values: Tensor
    """[L, H] float64"""
    halves: tuple[Tensor, Tensor]

    @property
    def agreement(self) -> SplitHalf:
        """Rank correlation of the halves."""
        return SplitHalf.of(*self.halves)


def repeated_scores(
    model: PreTrainedModel,
    texts: Sequence[Calibration],
    words: Words,
    scorer: KVzip,
    chunk_size: int | None = None,
) -> RepeatedScores:
    """Scores [L, H] of all heads: max over the tokens of all texts of what they are worth (`KVzip`).

    First tokens that the scorer always keeps do not count: every head attends to them. chunk_size: tokens prefilled at
    a time. Raises HeadScoresError for layers of different numbers of heads, MethodError for a text too long for the
    model.
    """
    table_shape(model)
    found = torch.stack([_halves(model, text, words, scorer, chunk_size) for text in texts])
    one, other = found.amax(dim=0)
    return RepeatedScores(torch.maximum(one, other), (one, other))


def tokens_that_fit(context: int | None, most: int, words: Words, scorer: KVzip) -> int:
    """Tokens of a prompt, `most` or fewer, that a model of so much context can read and repeat at once."""
    if context is None:
        return most
    return min(most, max(1, (context - words_of(words, scorer).around) // 2))


def _halves(model: PreTrainedModel, text: Calibration, words: Words, scorer: KVzip, chunk_size: int | None) -> Tensor:
    """[2, L, H] float64 of the first and of the second half of a text's tokens."""
    length = text.tokens.shape[1]
    cache = CompressedCache(model, method("full"), prompt_length=length, defer=True, waiting_queries=1)
    prefill(model, text.tokens, cache, chunk_size)
    (layers,) = replay(cache, text.tokens, scorer, words).scores
    scores = torch.stack([layer[:, max(text.first, scorer.sinks) :].cpu().double() for layer in layers])
    return torch.stack([half.amax(dim=-1) for half in scores.tensor_split(2, dim=-1)])
