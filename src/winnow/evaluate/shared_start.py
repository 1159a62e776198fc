"""The start that several prompts have in common, read once: each prompt is gone on with on a fork of the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.fold import queries_to_remember
from winnow.composition.method import Method
from winnow.evaluate.decoding import clock, prefill
from winnow.evaluate.prompt_bytes import prompt_bytes
from winnow.evaluate.prompts import common_start
from winnow.models.devices import free_memory
from winnow.models.pieces import reads_in_pieces

_SHARE = 0.5
"""Part of the free memory that the start and its fork may take: others are there, too."""


def start_of(model: PreTrainedModel, prompts: Sequence[Tensor]) -> int:
    """Tokens that all prompts [1, N] begin with; of each at least one is left, whose logits begin its answer.

    None of them where the model does not read a prompt in pieces as it would in one.
    """
    if not reads_in_pieces(model.config):
        return 0
    return min(common_start(prompts), *(prompt.shape[1] - 1 for prompt in prompts))


def is_worth_sharing(model: PreTrainedModel, prompts: Sequence[Tensor], queries: Callable[[int], int]) -> bool:
    """True for prompts [1, N] with half of the longest in common, if memory has room for that start and for a fork.

    The start waits in dense slots of all layers, where a prompt read alone has those of one layer at a time.

    queries: how many of the last queries wait with a prompt of so many tokens (`queries_alone`).
    """
    if len(prompts) < 2:
        return False
    longest = max(prompt.shape[1] for prompt in prompts)
    if 2 * start_of(model, prompts) < longest:
        return False
    free = free_memory(model)
    return free is None or 2 * prompt_bytes(model).dense(longest, queries(longest)) <= _SHARE * free


def queries_alone(method: Method, length: int, fold_every: int | None) -> int:
    """Last queries that wait with a prompt of `length` tokens which one method, and its folds, will look at.

    Where attention is summed up as the prompt is read, the scorer needs none of them.
    """
    summed = method.scorer.sums_attention
    looked_at = method.queries_besides_sums(length) if summed else method.queries_needed(length)
    return min(length, max(looked_at, 0 if fold_every is None else queries_to_remember(method, fold_every)))


def shared_start(
    model: PreTrainedModel,
    prompts: Sequence[Tensor],
    method: Method,
    chunk_size: int | None = None,
    fold_every: int | None = None,
) -> SharedStart:
    """The start of prompts [1, N] that a method compresses, each at its own end; fold_every: see `CompressedCache`."""
    longest = max(prompt.shape[1] for prompt in prompts)
    cache = CompressedCache(model, method, prompt_length=longest, fold_every=fold_every)
    return SharedStart(model, prompts, cache, chunk_size)


class SharedStart:
    """The common start of prompts [1, N] in a cache that compresses nothing before a whole prompt is there."""

    def __init__(
        self, model: PreTrainedModel, prompts: Sequence[Tensor], cache: CompressedCache, chunk_size: int | None = None
    ) -> None:
        """cache: empty, made for a prompt as long as the longest one (`prompt_length`)."""
        self.tokens = start_of(model, prompts)
        """Number of those that are shared."""
        self._cache = cache
        begin = clock(model)
        if self.tokens:
            prefill(model, prompts[0][:, : self.tokens], cache, chunk_size)
        self.seconds = clock(model) - begin
        """Time of reading them."""

    def fork(self, prompt: Tensor) -> CompressedCache:
        """A cache that has seen the start of prompt [1, N], and waits for the rest of it."""
        return self._cache.extended(prompt.shape[1])
