"""Prompts that begin alike, prefilled once for all questions, methods and budgets.

The prefill of a prompt is dense and exact whatever the method, so it can be shared. Only what depends on the
method is done for each, on forks of a cache that defers compression: until then it holds the whole prompt and all its
queries, which any scorer can use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.fold import queries_to_remember
from winnow.cache.listening import Replayed
from winnow.cache.replay import Words, replay
from winnow.composition.method import Method
from winnow.composition.names import method
from winnow.evaluate.decoding import clock, prefill
from winnow.evaluate.rankings import RememberedRankings
from winnow.evaluate.shared_start import SharedStart
from winnow.score import Replayer


class Compressed(NamedTuple):
    """A prompt as one method leaves it."""

    cache: CompressedCache
    seconds: float
    """Time of the compression alone, all scoring counted as if nothing were shared."""
    remembered_seconds: float
    """The part of it that scoring, or a replay, took for an earlier method, and was not repeated."""


@dataclass(frozen=True)
class DenseReader:
    """A model that reads prompts for several methods, and leaves them dense until each compresses a fork.

    Every layer's keys and values stay as long as a prompt is used, with as many of the last queries as the methods look
    at; a prefill for one method has those of a single layer at a time.
    """

    model: PreTrainedModel
    methods: Sequence[Method]
    chunk_size: int | None = None
    """Tokens that are read at a time."""
    fold_every: int | None = None
    """See `CompressedCache`: queries that folds look at stay, too."""
    words: Words | None = None
    """The tokenizer, for methods that have a prompt read a second time."""

    def read(self, tokens: Tensor) -> DensePrompt:
        """Tokens [1, N], prefilled."""
        begin = clock(self.model)
        cache = self.empty_cache(tokens.shape[1])
        logits = prefill(self.model, tokens, cache, self.chunk_size)
        return DensePrompt(cache, tokens, logits, clock(self.model) - begin, self.words)

    def read_start(self, prompts: Sequence[Tensor]) -> SharedPrefill:
        """The common start of prompts [1, N], prefilled."""
        return SharedPrefill(self, prompts)

    def read_all(self, prompts: Sequence[Tensor]) -> list[DensePrompt]:
        """Prompts [1, N] that begin alike, all of them held at once."""
        if len(prompts) == 1:
            # Nothing is shared, so nothing is copied.
            return [self.read(prompts[0])]
        shared = self.read_start(prompts)
        return [shared.dense(prompt) for prompt in prompts]

    def empty_cache(self, length: int) -> CompressedCache:
        """A cache that leaves a prompt of at most `length` tokens dense, with the queries that the methods look at."""
        return CompressedCache(
            self.model, method("full"), prompt_length=length, defer=True, waiting_queries=self.queries(length)
        )

    def queries(self, length: int) -> int:
        """Last queries that wait with a prompt of `length` tokens."""
        return max(queries_of(each, length, self.fold_every) for each in self.methods)


class SharedPrefill:
    """The common start of prompts, prefilled once; `dense` goes on with one of them."""

    def __init__(self, reader: DenseReader, prompts: Sequence[Tensor]) -> None:
        """prompts: [1, N]"""
        self._reader = reader
        cache = reader.empty_cache(max(prompt.shape[1] for prompt in prompts))
        self._start = SharedStart(reader.model, prompts, cache, reader.chunk_size)

    @property
    def start(self) -> int:
        """Tokens that are shared."""
        return self._start.tokens

    def dense(self, prompt: Tensor) -> DensePrompt:
        """The rest of one prompt, on a fork of the common start."""
        reader = self._reader
        begin = clock(reader.model)
        cache = self._start.fork(prompt)
        logits = prefill(reader.model, prompt[:, self.start :], cache, reader.chunk_size)
        seconds = self._start.seconds + clock(reader.model) - begin
        return DensePrompt(cache, prompt, logits, seconds, reader.words)


def queries_of(method: Method, length: int, fold_every: int | None) -> int:
    """Last queries of a prompt of `length` tokens that a method looks at, and its folds, if it folds."""
    folds = 0 if fold_every is None or method.uncompressed else queries_to_remember(method, fold_every)
    return min(length, max(1, method.queries_needed(length), folds))


class DensePrompt:
    """A prefilled prompt that is not compressed yet."""

    def __init__(
        self, cache: CompressedCache, tokens: Tensor, logits: Tensor, seconds: float, words: Words | None
    ) -> None:
        """tokens: [1, N]; words: the tokenizer, for methods that have the prompt read a second time."""
        self.logits = logits
        """[V] of the last token, the same for every method."""
        self.seconds = seconds
        """Time of prefilling the whole prompt, what it shares with others included."""
        self._cache = cache
        self._tokens = tokens
        self._words = words
        self._rankings = RememberedRankings()
        self._replayed: dict[Replayer, Replayed] = {}

    def compress(self, chosen: Method, fold_every: int | None = None) -> Compressed:
        """A fork, compressed by a method exactly as it would have been at the end of its own prefill.

        fold_every: see `CompressedCache`. The first method that has the prompt read again waits for that. Raises
        MethodError where there are no words for it.
        """
        saved, replayer = self._rankings.saved_seconds, chosen.scorer.replayer
        known = None if replayer is None else self._replayed.get(replayer)
        replayed = None if replayer is None else self._read_again(replayer)
        cache = self._cache.compressed_by(chosen, self._rankings, fold_every, replayed)
        remembered = self._rankings.saved_seconds - saved + (known.seconds if known else 0.0)
        return Compressed(cache, cache.stats().compress_seconds + remembered, remembered)

    def _read_again(self, replayer: Replayer) -> Replayed:
        """Findings of a replay, which took no time where they were known."""
        known = self._replayed.get(replayer)
        if known is not None:
            return known._replace(seconds=0.0)
        self._replayed[replayer] = replay(self._cache, self._tokens, replayer, self._words)
        return self._replayed[replayer]
