"""Sequences decoded side by side: compressed one by one, joined as rows of one cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.while_graphed import step_graphs
from winnow.evaluate.decoding import clock
from winnow.evaluate.open_rows import OpenRows
from winnow.evaluate.sampling import most_likely_of_each
from winnow.models.cache_argument import with_cache
from winnow.models.devices import input_device


class AnswerStart(NamedTuple):
    """A prompt inside a compressed cache of its own; nothing was decoded yet."""

    cache: CompressedCache
    logits: Tensor
    """[V] of the prompt's last token."""


class Decoded(NamedTuple):
    """The continuation of a row."""

    tokens: list[int]
    steps: int
    """Forward passes until it left the batch."""
    seconds: float
    """Its shares of their time."""


class Said:
    """The tokens of rows that are decoded side by side, each up to a stop token or `most` tokens."""

    def __init__(self, count: int, most: int, stops: frozenset[int]) -> None:
        self.rows = OpenRows(count)
        self._texts: list[list[int]] = [[] for _ in range(count)]
        self._steps, self._seconds = [0] * count, [0.0] * count
        self._most = most
        self._stops = stops

    def add(self, tokens: Tensor) -> None:
        """The next token of every row in the batch; those of rows that ended do not count."""
        for row, token in zip(self.rows.there, tokens.tolist(), strict=True):
            if row in self.rows.open and token not in self._stops:
                self._texts[row].append(token)
            if token in self._stops or len(self._texts[row]) == self._most:
                self.rows.open.discard(row)

    def step(self, seconds: float) -> None:
        """A forward pass of the rows in the batch."""
        for row in self.rows.there:
            self._steps[row] += 1
            self._seconds[row] += seconds / len(self.rows.there)

    def decoded(self) -> list[Decoded]:
        """All rows."""
        return [Decoded(*each) for each in zip(self._texts, self._steps, self._seconds, strict=True)]


def decode_batch(
    model: PreTrainedModel, rows: Sequence[AnswerStart], max_new_tokens: int, stops: frozenset[int]
) -> list[Decoded]:
    """Greedy tokens of every row, up to a stop token or `max_new_tokens` tokens. The caches of the rows are used up.

    Rows see nothing of each other, so each decodes what it would have decoded alone.
    """
    positions = torch.tensor([[row.cache.get_seq_length()] for row in rows], device=input_device(model))
    cache = CompressedCache.joined([row.cache for row in rows]) if len(rows) > 1 else rows[0].cache
    tokens = most_likely_of_each(torch.stack([row.logits for row in rows]))
    said = Said(len(rows), max_new_tokens, stops)
    said.add(tokens)
    with step_graphs(model, max_new_tokens):
        while said.rows.open:
            begin = clock(model)
            tokens, positions = said.rows.without_ended(cache, tokens, positions)
            tokens = next_tokens(model, cache, tokens, positions)
            positions = positions + 1
            said.step(clock(model) - begin)
            said.add(tokens)
    return said.decoded()


def decode_rows(
    model: PreTrainedModel, rows: Sequence[AnswerStart], max_new_tokens: int, stops: frozenset[int]
) -> list[Decoded]:
    """The same side by side where the caches can be joined, one by one where they cannot."""
    if all(row.cache.may_be_joined() for row in rows):
        return decode_batch(model, rows, max_new_tokens, stops)
    return [decode_batch(model, [row], max_new_tokens, stops)[0] for row in rows]


@torch.no_grad()
def next_tokens(model: PreTrainedModel, cache: CompressedCache, tokens: Tensor, positions: Tensor) -> Tensor:
    """The most likely tokens [R] after tokens [R], which stand at positions [R, 1]; rows see nothing of each other."""
    output = model(input_ids=tokens[:, None], position_ids=positions, **with_cache(model, cache))
    return most_likely_of_each(output.logits[:, -1])
