"""Prompts of a group, prefilled once and compressed by one method after another.

Two readings: the question is part of the prompt when it is compressed, or the context is compressed without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.cache.context import Context
from winnow.cache.replay import words_in
from winnow.cache.stats import CacheStats
from winnow.composition.method import Method
from winnow.composition.names import method as named
from winnow.evaluate.asked_together import answers_after
from winnow.evaluate.batch import AnswerStart, Decoded, decode_rows
from winnow.evaluate.decoding import clock, prefill, stop_tokens
from winnow.evaluate.example_prompts import context_tokens, example_tokens
from winnow.evaluate.likelihood import log_probabilities
from winnow.evaluate.shared import Compressed, DensePrompt, DenseReader
from winnow.tasks.example import Example


class Terms(NamedTuple):
    """Terms on which prompts are read, the same for all groups of a run."""

    question_seen: bool
    fold_every: int | None = None
    """See `CompressedCache`; the full cache folds nothing."""
    batch: int = 8
    """Questions that are answered side by side, at most."""


class Costs(NamedTuple):
    """A prompt's cache after its compression, and the time that led to it."""

    stats: CacheStats
    prefill_seconds: float
    """Time of the whole prompt, compression included."""
    compress_seconds: float


class Reading(ABC):
    """Examples of one context, read."""

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Tensor], terms: Terms) -> None:
        self.model = model
        self._terms = terms
        self.prompts = prompts
        """[1, N] tokens of every example."""
        self._full: list[Tensor] = []

    def compress(self, dense: DensePrompt, method: Method) -> Compressed:
        """A fork of a prompt, compressed by a method."""
        return dense.compress(method, None if method.uncompressed else self._terms.fold_every)

    @abstractmethod
    def starts(self, method: Method) -> Iterator[tuple[Costs, AnswerStart]]:
        """Every prompt in a cache that a method compressed, with the logits of its last token."""

    def answers(self, methods: Sequence[Method], max_new_tokens: int) -> list[list[tuple[Costs, Decoded]]]:
        """Greedy answers to every prompt under every method, all side by side, of at most `max_new_tokens` tokens."""
        costs, rows = zip(*(start for method in methods for start in self.starts(method)), strict=True)
        decoded = decode_rows(self.model, rows, max_new_tokens, stop_tokens(self.model))
        answers, count = list(zip(costs, decoded, strict=True)), len(self.prompts)
        return [answers[first : first + count] for first in range(0, len(answers), count)]

    def full_log_probabilities(self, continuations: Sequence[Tensor]) -> list[Tensor]:
        """[n, V] of the full cache for the continuation [n] of every example; computed once."""
        if not self._full:
            starts = self.starts(named("full"))
            self._full = [
                log_probabilities(self.model, start, tokens)
                for (_, start), tokens in zip(starts, continuations, strict=True)
            ]
        return self._full


def read_group(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    methods: Sequence[Method],
    chat_template: bool,
    terms: Terms,
) -> Reading:
    """Prefills examples of one context for several methods."""
    prompts = [example_tokens(tokenizer, example, chat_template) for example in examples]
    words = words_in(tokenizer, chat_template)
    reader = DenseReader(model, methods, fold_every=terms.fold_every, words=words)
    if terms.question_seen:
        return _Seen(reader, prompts, terms)
    return _Unseen(reader, prompts, terms, context_tokens(tokenizer, examples[0], prompts, chat_template))


class _Seen(Reading):
    """Whole prompts, compressed one by one."""

    def __init__(self, reader: DenseReader, prompts: Sequence[Tensor], terms: Terms) -> None:
        super().__init__(reader.model, prompts, terms)
        self._dense = reader.read_all(prompts)

    def starts(self, method: Method) -> Iterator[tuple[Costs, AnswerStart]]:
        for dense in self._dense:
            made = self.compress(dense, method)
            costs = Costs(made.cache.stats(), dense.seconds + made.seconds, made.seconds)
            yield costs, AnswerStart(made.cache, dense.logits)


class _Unseen(Reading):
    """The context, compressed alone; questions are read by forks of it."""

    def __init__(self, reader: DenseReader, prompts: Sequence[Tensor], terms: Terms, length: int) -> None:
        """length: tokens of the context."""
        super().__init__(reader.model, prompts, terms)
        self._context = prompts[0][:, :length]
        self._dense = reader.read(self._context)

    def starts(self, method: Method) -> Iterator[tuple[Costs, AnswerStart]]:
        costs, context = self._compressed(method)
        for question in self._questions():
            begin = clock(self.model)
            cache = context.cache()
            logits = prefill(self.model, question[None], cache)
            seconds = clock(self.model) - begin
            yield costs._replace(prefill_seconds=costs.prefill_seconds + seconds), AnswerStart(cache, logits)

    def answers(self, methods: Sequence[Method], max_new_tokens: int) -> list[list[tuple[Costs, Decoded]]]:
        costs, contexts = zip(*map(self._compressed, methods), strict=True)
        if not contexts[0].cache().is_attention_alone():
            # Sliding and linear layers cannot leave out what rows are padded with.
            return super().answers(methods, max_new_tokens)
        stops, questions, most = stop_tokens(self.model), self._questions(), self._terms.batch
        batches = [questions[first : first + most] for first in range(0, len(questions), most)]
        answered = [answers_after(self.model, contexts, batch, max_new_tokens, stops) for batch in batches]
        return [
            [(cost, each) for batch in batches_of_one for each in batch]
            for cost, batches_of_one in zip(costs, zip(*answered, strict=True), strict=True)
        ]

    def _compressed(self, method: Method) -> tuple[Costs, Context]:
        made = self.compress(self._dense, method)
        costs = Costs(made.cache.stats(), self._dense.seconds + made.seconds, made.seconds)
        return costs, Context(made.cache, self._context)

    def _questions(self) -> list[Tensor]:
        return [prompt[0, self._context.shape[1] :] for prompt in self.prompts]
