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
    texts: list[list[int]] = [[] for _ in rows]
    open_rows = set(range(len(rows)))
    steps = 0
    begin = clock(model)
    while open_rows:
        for row, token in enumerate(tokens.tolist()):
            if row in open_rows and token not in stops:
                texts[row].append(token)
            if token in stops or len(texts[row]) == max_new_tokens:
                open_rows.discard(row)
        if open_rows:
            tokens = next_tokens(model, cache, tokens, positions + steps)
            steps += 1
    share = (clock(model) - begin) / len(rows)
    return [Decoded(text, steps, share) for text in texts]


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
