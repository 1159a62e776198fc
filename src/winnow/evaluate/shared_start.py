"""The start that several prompts have in common, read once: each prompt is gone on with on a fork of the cache."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.hybrid import token_bytes
from winnow.composition.method import Method
from winnow.evaluate.decoding import clock, prefill
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


def is_worth_sharing(model: PreTrainedModel, prompts: Sequence[Tensor]) -> bool:
    """True for prompts [1, N] with half of the longest in common, if memory has room for that start and for a fork.

    The start waits in dense slots of all layers, where a prompt read alone has those of one layer at a time.
    """
    if len(prompts) < 2:
        return False
    start, longest, free = start_of(model, prompts), max(prompt.shape[1] for prompt in prompts), free_memory(model)
    return 2 * start >= longest and (free is None or 2 * longest * token_bytes(model) <= _SHARE * free)


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
