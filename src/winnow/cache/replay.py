"""A second reading of a prompt, before its compression: the model repeats it, chunk by chunk, and a scorer listens.

Keys and values of the replay are never stored: a layer attends over the prompt, which stays as it is, and over what is
read now, and forgets that. So a replay takes the dense prompt, one layer's copy of it and one chunk's activations.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.cache.compressed import CompressedCache
from winnow.cache.hybrid import CompressedHybridLayer
from winnow.cache.layer import CompressedLayer
from winnow.cache.listening import Listening, Replayed
from winnow.cache.replay_words import ReplayWords
from winnow.errors import CacheError, MethodError, ModelError
from winnow.models import context_length
from winnow.models.cache_argument import with_cache
from winnow.models.devices import input_device
from winnow.models.kinds import counts_anew
from winnow.models.last_logits import last_only
from winnow.models.positions import positions_from
from winnow.score import Replayer

LEAST_CHUNK = 16
"""Tokens: in smaller parts than that no prompt is read again."""
Words: TypeAlias = PreTrainedTokenizerBase | ReplayWords
"""The words of a replay, or a tokenizer that knows them."""


@torch.no_grad()
def replay(cache: CompressedCache, prompt: Tensor, replayer: Replayer, words: Words | None) -> Replayed:
    """Has the model read a prompt once more that waits for its compression, each row by itself.

    Args:
        cache: made with `defer=True`; its prompt is there, and stays as it is.
        prompt: [R, N] its tokens, padding included.
        replayer: the scorer that listens.
        words: the model's tokenizer, or the words around each chunk.

    Raises:
        MethodError: no words; a prompt behind which the model can read next to nothing.
        CacheError: no prompt is waiting, or other tokens; padding, or several rows, before sliding or linear layers.
        ModelError: layers whose state cannot be put back; attention modules that are not given hidden states.
    """
    chosen = words_of(words, replayer)
    model, begin = _check(cache, prompt), time.perf_counter()
    waiting = cache.compressed_layers()
    rows = []
    for row in range(prompt.shape[0]):
        valid = waiting[0].arriving.valid(row).cpu()
        tokens = prompt[row].cpu()[valid]
        chunk = _chunk(model, cache.get_seq_length(), chosen, replayer, tokens)
        listening = Listening(replayer, row, cache.compression.heads, len(tokens))
        with _heard(cache, listening), _norms_of(waiting if replayer.hidden_norms else [], listening):
            for part in chosen.parts(tokens, chunk):
                listening.part = part
                with _kept_as_they_are(cache):
                    # As without padding: what is read stands right behind the row's last token.
                    _read(model, cache, part.tokens, len(tokens))
        rows.append(listening.scores)
    return Replayed(replayer, rows, time.perf_counter() - begin)


def words_in(tokenizer: PreTrainedTokenizerBase, chat_template: bool) -> Words:
    """The words of a replay for prompts that a tokenizer's chat template writes, or plain ones; read when needed."""
    return tokenizer if chat_template else ReplayWords.of(tokenizer, chat_template=False)


def words_of(words: Words | None, replayer: Replayer) -> ReplayWords:
    """The words of a replay, if there are any. Raises MethodError where there are none."""
    if words is None:
        raise MethodError(
            f"{type(replayer).__name__} asks the model in words to repeat its prompt: give the model's tokenizer, as "
            "in winnow.compress(model, input_ids, method, tokenizer=tokenizer)."
        )
    return words if isinstance(words, ReplayWords) else ReplayWords.of(words)


def _check(cache: CompressedCache, prompt: Tensor) -> PreTrainedModel:
    waiting = cache.compressed_layers()
    if not all(layer.waiting for layer in waiting):
        raise CacheError("only a prompt that waits for compression can be read again; make the cache with defer=True.")
    held = [len(waiting[0].prefixes), cache.get_seq_length()]
    if list(prompt.shape) != held:
        raise CacheError(f"the waiting prompt has [rows, tokens] = {held}, not {list(prompt.shape)}; give its tokens.")
    if any(isinstance(layer, CompressedHybridLayer) for layer in cache.layers):
        raise ModelError(
            "every layer of this model has a linear state, which reading the prompt again would change; use a method "
            "that reads the prompt once (keydiff, expectedattention)."
        )
    padded = any(not bool(waiting[0].arriving.valid(row).all()) for row in range(held[0]))
    if len(waiting) < len(cache.layers) and (held[0] > 1 or padded):
        raise CacheError(
            "sliding and linear layers hold all rows together, padding included, so only a single prompt without "
            "padding can be read again; compress the rows one by one."
        )
    model = cache.compression.model()
    if model is None:
        raise CacheError("the model of this cache was deleted; keep it until the prompt is compressed.")
    return model


def _chunk(model: PreTrainedModel, seen: int, words: ReplayWords, replayer: Replayer, tokens: Tensor) -> int:
    """Tokens of a prompt [n] that are read again at a time: the scorer's chunk, or as many as the model can read.

    Raises MethodError where that is next to nothing.
    """
    context = context_length(model.config)
    longest = max((len(part.tokens) for part in words.parts(tokens, replayer.chunk)), default=0)
    if context is None or seen + longest <= context:
        return replayer.chunk
    room, least = context - seen - words.around, min(LEAST_CHUNK, replayer.chunk, len(tokens))
    if room < least:
        raise MethodError(
            f"{type(replayer).__name__} has the model read parts of the prompt again behind its {seen:,} tokens, with "
            f"{words.around} tokens around each, but the model reads at most {context:,}: shorten the prompt by "
            f"{least - room:,} tokens, or use a method that reads it once (keydiff)."
        )
    return room


@contextmanager
def _heard(cache: CompressedCache, listening: Listening) -> Iterator[None]:
    """Within, layers read again instead of storing; what fails leaves the cache as it was."""
    compression = cache.compression
    compression.listening = listening
    try:
        yield
    finally:
        compression.listening = None
        if not compression.progress.is_whole():
            for layer in cache.compressed_layers():
                layer.pending = None
            compression.progress.withdraw_all()


@contextmanager
def _norms_of(layers: list[CompressedLayer], listening: Listening) -> Iterator[None]:
    """Within, the norms of what the layers' attention modules are given are noted, in passes of this thread."""
    hooks = [
        module.register_forward_pre_hook(_noting(listening, index), with_kwargs=True)
        for index, module in enumerate(layer.compressor.module() for layer in layers)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _noting(listening: Listening, index: int) -> Any:
    reader = threading.get_ident()

    def note(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if threading.get_ident() != reader:
            return  # a pass over another cache: threads may share a model
        hidden = arguments[0] if arguments else named.get("hidden_states")
        if hidden is None:
            raise ModelError(f"{type(module).__name__} has no argument hidden_states, which KVzip+ needs; use kvzip.")
        listening.norms[index] = hidden[0].float().norm(dim=-1)

    return note


@contextmanager
def _kept_as_they_are(cache: CompressedCache) -> Iterator[None]:
    """Within, layers that are not compressed are copies: what is read goes into their windows and states."""
    stock = {index: layer for index, layer in enumerate(cache.layers) if not isinstance(layer, CompressedLayer)}
    for index, layer in stock.items():
        cache.layers[index] = deepcopy(layer)
    try:
        yield
    finally:
        for index, layer in stock.items():
            cache.layers[index] = layer


def _read(model: PreTrainedModel, cache: CompressedCache, tokens: Tensor, first: int) -> None:
    """Feeds tokens [n] at the positions from `first` on."""
    fed, named = tokens[None].to(input_device(model)), dict[str, Any](last_only(model))
    if first != cache.get_seq_length() or counts_anew(model.config):
        named["position_ids"] = positions_from(first, fed)
    model(input_ids=fed, **with_cache(model, cache), **named)
