"""Prompts of `winnow run` in compressed caches: read for one method, or once for all that are compared.

Of questions in a row about one document, what their prompts begin with is read once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Generic, Protocol, TypeVar

from torch import Tensor
from transformers import PreTrainedModel

from winnow.commands.batch_file import Asked
from winnow.commands.prefill_progress import reading, tokens_read
from winnow.commands.progress import stage
from winnow.commands.run_work import Work
from winnow.composition.method import Method
from winnow.evaluate.answering import (
    CompressedDocument,
    Prefilled,
    ask_afterwards,
    compress_document,
    read_on,
    read_with_question,
)
from winnow.evaluate.comparing import document_by, prefilled_by
from winnow.evaluate.shared import DensePrompt, DenseReader, SharedPrefill
from winnow.evaluate.shared_start import SharedStart, is_worth_sharing, queries_alone, shared_start, start_of

Start = TypeVar("Start")


class Prefills(Protocol):
    """A way to prompts in caches."""

    def read(self, asked: Asked, prompt: Tensor, method: Method, doing: str) -> Prefilled:
        """The prompt [1, N] of a question in a cache that a method compressed; doing: what bars begin with."""


def prefills_of(model: PreTrainedModel, work: Work) -> Prefills:
    """One prefill for each method alone, or one for all: sharing holds the dense prompt, which one method need not."""
    return PrefillsForAll(model, work) if work.compares else OwnPrefills(model, work)


class StartsInARow(Generic[Start]):
    """The start of prompts of questions in a row about one document: read for the first, held until the next document.

    The prompts of other questions are read whole, and all of them where memory has no room for it.
    """

    def __init__(self, model: PreTrainedModel, work: Work) -> None:
        self._model = model
        self._prompts: list[Tensor] = []
        self._start: Start | None = None
        self._in_a_row = {}
        for _, pairs in groupby(zip(work.asked, work.prompts, strict=True), key=lambda pair: pair[0].document):
            prompts = [prompt for _, prompt in pairs]
            self._in_a_row.update({id(prompt): prompts for prompt in prompts})

    def of(self, prompt: Tensor, read: Callable[[list[Tensor]], Start], queries: Callable[[int], int]) -> Start | None:
        """The start of a prompt [1, N] of the work; None where nothing is shared.

        read: reads that of several. queries: see `is_worth_sharing`.
        """
        prompts = self._in_a_row[id(prompt)]
        if prompts is not self._prompts:
            # The one before is freed first.
            self._prompts, self._start = prompts, None
            self._start = read(prompts) if is_worth_sharing(self._model, prompts, queries) else None
        return self._start


class OwnPrefills:
    """Layers are compressed as they are read. Without the question, a document is read once for all in a row."""

    def __init__(self, model: PreTrainedModel, work: Work) -> None:
        self._model = model
        self._work = work
        self._starts: StartsInARow[SharedStart] = StartsInARow(model, work)
        self._document: str | None = None
        self._compressed: CompressedDocument | None = None

    def read(self, asked: Asked, prompt: Tensor, method: Method, doing: str) -> Prefilled:
        """As of `Prefills`."""
        options, length, fold_every = self._work.options, prompt.shape[1], self._work.fold_every(method)
        doing, words = f"{doing}: {method}, reading", self._work.words
        if not options.question_agnostic:
            return self._with_question(prompt, method, doing)
        if self._compressed is None or asked.document != self._document:
            self._document, self._compressed = asked.document, None
            tokens = self._work.document_part(asked)
            with reading(self._model, tokens_read(method, tokens.shape[1], words), doing):
                self._compressed = compress_document(self._model, method, tokens, options.chunk_size, fold_every, words)
        with reading(self._model, length - self._compressed.tokens, doing):
            return ask_afterwards(self._model, self._compressed, prompt)

    def _with_question(self, prompt: Tensor, method: Method, doing: str) -> Prefilled:
        model, chunk_size, fold_every = self._model, self._work.options.chunk_size, self._work.fold_every(method)

        def read(prompts: list[Tensor]) -> SharedStart:
            with reading(model, start_of(model, prompts), f"{doing} for {len(prompts)} questions"):
                return shared_start(model, prompts, method, chunk_size, fold_every)

        def waiting(tokens: int) -> int:
            return queries_alone(method, tokens, fold_every)

        # A prompt that is read a second time is held whole until then.
        start = None if method.scorer.replayer else self._starts.of(prompt, read, waiting)
        if start is not None:
            with reading(model, prompt.shape[1] - start.tokens, doing):
                return read_on(model, start, prompt, chunk_size)
        words = self._work.words
        with reading(model, tokens_read(method, prompt.shape[1], words), doing):
            return read_with_question(model, method, prompt, chunk_size, fold_every, words)


class PrefillsForAll:
    """Each prompt is read once for all methods; without the question, each document for all questions in a row."""

    def __init__(self, model: PreTrainedModel, work: Work) -> None:
        self._model = model
        self._work = work
        self._reader = DenseReader(model, work.methods, work.options.chunk_size, work.options.fold, work.words)
        self._starts: StartsInARow[SharedPrefill] = StartsInARow(model, work)
        self._prompt: Tensor | None = None
        self._dense: DensePrompt | None = None
        self._document: str | None = None
        self._compressed: dict[Method, CompressedDocument] = {}

    def read(self, asked: Asked, prompt: Tensor, method: Method, doing: str) -> Prefilled:
        """As of `Prefills`."""
        if not self._work.options.question_agnostic:
            dense = self._dense_prompt(prompt, doing)
            with stage(f"{doing}: {method}, compressing"):
                return prefilled_by(dense, method, prompt, self._work.fold_every(method))
        if asked.document != self._document:
            self._document, self._compressed = asked.document, {}
            self._compressed = self._by_all_methods(self._work.document_part(asked), doing)
        document = self._compressed[method]
        with reading(self._model, prompt.shape[1] - document.tokens, f"{doing}: {method}, reading"):
            return ask_afterwards(self._model, document, prompt)

    def _dense_prompt(self, prompt: Tensor, doing: str) -> DensePrompt:
        """The prompt that all methods are asked about in turn."""
        if self._dense is None or prompt is not self._prompt:
            # The one before is freed first.
            self._prompt, self._dense = prompt, None
            self._dense = self._read_on(prompt, doing)
        return self._dense

    def _read_on(self, prompt: Tensor, doing: str) -> DensePrompt:
        """A prompt behind the start that it shares, if it shares one."""
        model = self._model
        doing = f"{doing}: reading for {len(self._work.methods)} methods"

        def read(prompts: list[Tensor]) -> SharedPrefill:
            with reading(model, start_of(model, prompts), f"{doing} and {len(prompts)} questions"):
                return self._reader.read_start(prompts)

        shared = self._starts.of(prompt, read, self._reader.queries)
        if shared is None:
            return self._read(prompt, doing)
        with reading(model, prompt.shape[1] - shared.start, doing):
            return shared.dense(prompt)

    def _by_all_methods(self, tokens: Tensor, doing: str) -> dict[Method, CompressedDocument]:
        """A document under every method; its dense prefill is gone afterwards."""
        work = self._work
        dense = self._read(tokens, f"{doing}: reading for {len(work.methods)} methods")
        with stage(f"{doing}: compressing") as shown:
            found = {}
            for method in work.methods:
                shown.show(f"{doing}: {method}, compressing")
                found[method] = document_by(dense, method, tokens, work.fold_every(method))
        return found

    def _read(self, tokens: Tensor, doing: str) -> DensePrompt:
        with reading(self._model, tokens.shape[1], doing):
            return self._reader.read(tokens)
