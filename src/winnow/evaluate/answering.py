"""One question about one document: from a model, a method and a prompt to an answer with its costs."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from winnow.cache.compressed import CompressedCache
from winnow.cache.context import Context, compress
from winnow.cache.replay import Words
from winnow.cache.stats import CacheStats
from winnow.composition.method import Method
from winnow.evaluate.decoding import clock, decode, prefill, stop_tokens
from winnow.evaluate.lookup import PromptLookup
from winnow.evaluate.sampling import GREEDY, Sampling
from winnow.evaluate.shared import DenseReader
from winnow.evaluate.shared_start import SharedStart
from winnow.models.devices import input_device


@dataclass(frozen=True)
class Answer:
    """An answer, its costs, and the statistics of its cache."""

    text: str
    method: Method
    question_seen: bool
    """True if the document was compressed together with the question."""
    prompt_tokens: int
    new_tokens: int
    prefill_seconds: float
    """From the first prompt token to the first token of the answer, compression included."""
    compress_seconds: float
    decode_seconds: float
    """Time of the forward passes after the first token of the answer."""
    decode_steps: int
    """Tokens that entered the cache after the prompt; one fewer than `new_tokens` if `max_new_tokens`, not a stop
    token, ended the answer. Equal to the number of those passes, except where one pass checks several candidates."""
    stats: CacheStats
    """Statistics of the cache at the end of the answer."""

    @property
    def decode_speed(self) -> float | None:
        """Tokens per second; None for an answer of a single token."""
        return self.decode_steps / self.decode_seconds if self.decode_steps and self.decode_seconds else None


class Prefilled(NamedTuple):
    """A prompt inside a compressed cache, with the logits [V] of its last token."""

    cache: CompressedCache
    logits: Tensor
    prompt_tokens: int
    seconds: float
    question_seen: bool
    remembered_seconds: float = 0.0
    """Part of the seconds: scoring that was done for another method, and not repeated."""


def read_with_question(
    model: PreTrainedModel,
    method: Method,
    prompt: Tensor,
    chunk_size: int | None = None,
    fold_every: int | None = None,
    words: Words | None = None,
) -> Prefilled:
    """Prefills and compresses prompt [1, N], document and question together.

    fold_every: see `CompressedCache`. words: the tokenizer, for methods that have a prompt read a second time.
    """
    begin = clock(model)
    length = prompt.shape[1]
    if method.scorer.replayer is not None:
        dense = DenseReader(model, [method], chunk_size, fold_every, words).read(prompt)
        cache = dense.compress(method, fold_every).cache
        return Prefilled(cache, dense.logits, length, clock(model) - begin, question_seen=True)
    cache = CompressedCache(model, method, prompt_length=length if chunk_size else None, fold_every=fold_every)
    logits = prefill(model, prompt, cache, chunk_size)
    return Prefilled(cache, logits, length, clock(model) - begin, question_seen=True)


def read_on(model: PreTrainedModel, start: SharedStart, prompt: Tensor, chunk_size: int | None = None) -> Prefilled:
    """The same of a prompt whose start was read before; the time of that counts too."""
    begin = clock(model)
    cache = start.fork(prompt)
    logits = prefill(model, prompt[:, start.tokens :], cache, chunk_size)
    seconds = start.seconds + clock(model) - begin
    return Prefilled(cache, logits, prompt.shape[1], seconds, question_seen=True)


class CompressedDocument(NamedTuple):
    """A document compressed without a question, for any number of them."""

    context: Context
    tokens: int
    seconds: float
    remembered_seconds: float = 0.0
    """As of `Prefilled`."""


def compress_document(
    model: PreTrainedModel,
    method: Method,
    tokens: Tensor,
    chunk_size: int | None = None,
    fold_every: int | None = None,
    words: Words | None = None,
) -> CompressedDocument:
    """Prefills and compresses the document part [1, M] of a prompt; fold_every, words: as of `read_with_question`."""
    begin = clock(model)
    context = compress(
        model, tokens.to(input_device(model)), method, chunk_size=chunk_size, fold_every=fold_every, tokenizer=words
    )
    return CompressedDocument(context, tokens.shape[1], clock(model) - begin)


def ask_afterwards(model: PreTrainedModel, document: CompressedDocument, prompt: Tensor) -> Prefilled:
    """Feeds what prompt [1, N] has after its document; the time of reading the document counts too."""
    begin = clock(model)
    cache = document.context.cache()
    logits = prefill(model, prompt[:, document.tokens :], cache)
    seconds = document.seconds + clock(model) - begin
    return Prefilled(cache, logits, prompt.shape[1], seconds, False, document.remembered_seconds)


def finish(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prefilled: Prefilled,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    streamer: BaseStreamer | None = None,
    lookup: PromptLookup | None = None,
) -> Answer:
    """Decodes to a stop token, or `max_new_tokens` tokens.

    lookup: of the prompt, for candidates; see `decode`.
    streamer: gets the tokens [1] as they come, and their end also where they are interrupted.
    """
    cache = prefilled.cache
    begin = clock(model)
    tokens = decode(model, cache, prefilled.logits, max_new_tokens, stop_tokens(model), sampling.choice(), lookup)
    said: list[int] = []
    stream(tokens, said, streamer)
    seconds = clock(model) - begin
    stats = cache.stats()
    return Answer(
        text=tokenizer.decode(said, skip_special_tokens=True).strip(),
        method=cache.method,
        question_seen=prefilled.question_seen,
        prompt_tokens=prefilled.prompt_tokens,
        new_tokens=len(said),
        prefill_seconds=prefilled.seconds,
        compress_seconds=stats.compress_seconds + prefilled.remembered_seconds,
        decode_seconds=seconds,
        decode_steps=stats.tokens_seen - prefilled.prompt_tokens,
        stats=stats,
    )


def stream(tokens: Generator[int, None, None], said: list[int], streamer: BaseStreamer | None) -> None:
    """Adds tokens to those that were said, and gives each to a streamer, as they come.

    Where they are interrupted, those so far are in the list, and the streamer has its end.
    """
    try:
        for token in tokens:
            said.append(token)
            if streamer is not None:
                streamer.put(torch.tensor([token], device="cpu"))
    finally:
        tokens.close()  # takes back from the cache what was only tried
        # A streamer holds back words that are not complete.
        if streamer is not None:
            streamer.end()
