"""A document, compressed once, for any number of questions."""

from __future__ import annotations

import inspect
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.stats import CacheStats
from winnow.errors import CacheError
from winnow.method import Method


class Context:
    """The compressed prefill of a prompt. It is never written to again; `cache()` forks it."""

    def __init__(self, cache: CompressedCache, input_ids: Tensor) -> None:
        self._cache = cache
        self.input_ids = input_ids
        """[R, N] the tokens it was made from; put them before the question's for `model.generate`."""

    def cache(self) -> CompressedCache:
        """A cache that starts from this context and shares its prefix memory; its own tail is private."""
        return deepcopy(self._cache)

    def kept(self, layer: int, row: int = 0) -> list[Tensor]:
        """Kept positions per KV head; see `CompressedCache.kept`."""
        return self._cache.kept(layer, row)

    def stats(self) -> CacheStats:
        """What the context itself holds; see `CompressedCache.stats`."""
        return self._cache.stats()


def compress(
    model: PreTrainedModel,
    input_ids: Tensor,
    method: Method,
    *,
    attention_mask: Tensor | None = None,
    chunk_size: int | None = None,
    **inputs: Any,
) -> Context:
    """Prefills input_ids [R, N] once and compresses them, with no question in sight.

    Args:
        attention_mask: [R, N], 0 for padding on the left.
        chunk_size: prefill in chunks of so many tokens: less working memory, but every layer's dense keys and values
            are alive until the last chunk.
        inputs: passed to the model with the first chunk (pixel values).

    Raises:
        CacheError: an empty prompt; an attention implementation that is not "winnow".
    """
    if input_ids.dim() != 2 or input_ids.shape[1] == 0:
        raise CacheError(f"input_ids has shape {list(input_ids.shape)}; give [rows, tokens] with at least one token.")
    if chunk_size is not None and chunk_size < 1:
        raise CacheError(f"chunk_size is {chunk_size}; give a positive number of tokens, or None.")
    length = input_ids.shape[1]
    cache = CompressedCache(model, method, prompt_length=length)
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        inputs["logits_to_keep"] = 1
    with torch.no_grad():
        for start in range(0, length, chunk_size or length):
            stop = min(start + (chunk_size or length), length)
            mask = None if attention_mask is None else attention_mask[:, :stop]
            model(
                input_ids=input_ids[:, start:stop],
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
                **inputs,
            )
    return Context(cache, input_ids)
