"""Sequences decoded side by side: compressed one by one, joined as rows of one cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.evaluate.decoding import clock


class Row(NamedTuple):
    """A prompt inside a compressed cache of its own; nothing was decoded yet."""

    cache: CompressedCache
    logits: Tensor
    """[V] of the prompt's last token."""


class Decoded(NamedTuple):
    """The continuation of a row."""

    tokens: list[int]
    steps: int
    """Forward passes that the whole batch took."""
    seconds: float
    """This row's share of their time."""


class Said:
    """The tokens of rows that are decoded side by side, each up to a stop token or `most` tokens."""

    def __init__(self, rows: int, most: int, stops: frozenset[int]) -> None:
        self.texts: list[list[int]] = [[] for _ in range(rows)]
        self.open = set(range(rows))
        """Rows that go on."""
        self._most = most
        self._stops = stops

    def add(self, tokens: Tensor) -> None:
        """The next token of every row [R]; those of rows that ended do not count."""
        for row, token in enumerate(tokens.tolist()):
            if row in self.open and token not in self._stops:
                self.texts[row].append(token)
            if token in self._stops or len(self.texts[row]) == self._most:
                self.open.discard(row)


def can_be_joined(cache: CompressedCache) -> bool:
    """True if the cache has compressed layers only; sliding and linear layers keep a state of their own."""
    return len(cache.compressed_layers()) == len(cache.layers)


def decode_batch(
    model: PreTrainedModel, rows: Sequence[Row], max_new_tokens: int, stops: frozenset[int]
) -> list[Decoded]:
    """Greedy tokens of every row, up to a stop token or `max_new_tokens` tokens. The caches of the rows are used up.

    Rows see nothing of each other, so each decodes what it would have decoded alone.
    """
    positions = torch.tensor([[row.cache.get_seq_length()] for row in rows], device=model.device)
    cache = CompressedCache.joined([row.cache for row in rows]) if len(rows) > 1 else rows[0].cache
    tokens = torch.stack([row.logits for row in rows]).argmax(-1)
    said = Said(len(rows), max_new_tokens, stops)
    steps = 0
    begin = clock(model)
    said.add(tokens)
    while said.open:
        tokens = next_tokens(model, cache, tokens, positions + steps)
        steps += 1
        said.add(tokens)
    share = (clock(model) - begin) / len(rows)
    return [Decoded(text, steps, share) for text in said.texts]


def decode_rows(
    model: PreTrainedModel, rows: Sequence[Row], max_new_tokens: int, stops: frozenset[int]
) -> list[Decoded]:
    """The same side by side where the caches can be joined, one by one where they cannot."""
    if all(can_be_joined(row.cache) for row in rows):
        return decode_batch(model, rows, max_new_tokens, stops)
    return [decode_batch(model, [row], max_new_tokens, stops)[0] for row in rows]


@torch.no_grad()
def next_tokens(model: PreTrainedModel, cache: CompressedCache, tokens: Tensor, positions: Tensor) -> Tensor:
    """The most likely tokens [R] after tokens [R], which stand at positions [R, 1]; rows see nothing of each other."""
    output = model(input_ids=tokens[:, None], position_ids=positions, past_key_values=cache, use_cache=True)
    following: Tensor = output.logits[:, -1].argmax(-1)
    return following
