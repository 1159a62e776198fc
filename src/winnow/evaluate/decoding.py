"""Prefill and decoding in two visible steps, so that each can be timed and shared."""

from __future__ import annotations

import time
from collections.abc import Generator

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.idle_device import wait_until_idle
from winnow.cache.while_graphed import step_graphs
from winnow.evaluate.answer_reader import AnswerReader, fed
from winnow.evaluate.lookup import PromptLookup
from winnow.evaluate.sampling import Choice, most_likely
from winnow.heap import give_back_after
from winnow.models.kinds import counts_anew
from winnow.models.last_logits import last_only


@torch.no_grad()
def prefill(model: PreTrainedModel, tokens: Tensor, cache: Cache, chunk_size: int | None = None) -> Tensor:
    """Feeds tokens [1, N], after what the cache has seen; returns the last token's logits [V].

    chunk_size: feed so many at a time; for a prompt, the cache must know its length (`prompt_length`).
    """
    length = tokens.shape[1]
    step = chunk_size or length
    # A single token has no others: its model is not asked at every step of an answer.
    named = last_only(model) if length > 1 else {}
    placed = counts_anew(model.config)
    for start in range(0, length, step):
        logits = fed(model, tokens[:, start : start + step], cache, placed, named)[-1]
    if length > 1:  # steps of an answer do not ask where the model is
        give_back_after(length, model.device)
    return logits


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    cache: CompressedCache,
    logits: Tensor,
    max_new_tokens: int,
    stops: frozenset[int],
    choice: Choice = most_likely,
    lookup: PromptLookup | None = None,
) -> Generator[int, None, None]:
    """The chosen tokens one by one, `max_new_tokens` at most; a stop token ends them and is not among them.

    logits: [V] after the tokens that the cache holds. lookup: of the same tokens, for candidates that are checked
    several at a time where the cache can take them back; the tokens are chosen as without.
    """
    reader = AnswerReader(model, cache, lookup, placed=counts_anew(model.config))
    try:
        with step_graphs(model, max_new_tokens):
            for count in range(1, max_new_tokens + 1):
                token = choice(logits)
                if token in stops:
                    return
                yield token
                if count < max_new_tokens:
                    logits = reader.read(token, room=max_new_tokens - count - 1)
    finally:
        reader.settle()


def stop_tokens(model: PreTrainedModel) -> frozenset[int]:
    """Tokens that end an answer, from the model's generation configuration."""
    ends = model.generation_config.eos_token_id if model.generation_config else None
    ends = model.config.get_text_config(decoder=True).eos_token_id if ends is None else ends
    if ends is None:
        return frozenset()
    return frozenset([ends] if isinstance(ends, int) else ends)


def clock(model: PreTrainedModel) -> float:
    """Seconds of a monotonic clock, after all the work given to the model's device is done."""
    wait_until_idle(model.device)
    return time.perf_counter()
