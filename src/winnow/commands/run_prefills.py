"""Prompts of `winnow run` in compressed caches: read for one method, or once for all that are compared."""

from __future__ import annotations

from typing import Protocol

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
    read_with_question,
)
from winnow.evaluate.comparing import document_by, prefilled_by
from winnow.evaluate.shared import DensePrompt, dense_prompt


class Prefills(Protocol):
    """A way to prompts in caches."""

    def read(self, asked: Asked, prompt: Tensor, method: Method, doing: str) -> Prefilled:
        """The prompt [1, N] of a question in a cache that a method compressed; doing: what bars begin with."""


def prefills_of(model: PreTrainedModel, work: Work) -> Prefills:
    """One prefill for each method alone, or one for all: sharing holds the dense prompt, which one method need not."""
    return PrefillsForAll(model, work) if work.compares else OwnPrefills(model, work)


class OwnPrefills:
    """Layers are compressed as they are read. Without the question, a document is read once for all in a row."""

    def __init__(self, model: PreTrainedModel, work: Work) -> None:
        self._model = model
        self._work = work
        self._document: str | None = None
        self._compressed: CompressedDocument | None = None

    def read(self, asked: Asked, prompt: Tensor, method: Method, doing: str) -> Prefilled:
        """As of `Prefills`."""
        options, length, fold_every = self._work.options, prompt.shape[1], self._work.fold_every(method)
        doing, words = f"{doing}: {method}, reading", self._work.words
        if not options.question_agnostic:
            with reading(self._model, tokens_read(method, length, words), doing):
                return read_with_question(self._model, method, prompt, options.chunk_size, fold_every, words)
        if self._compressed is None or asked.document != self._document:
            self._document, self._compressed = asked.document, None
            tokens = self._work.document_part(asked)
            with reading(self._model, tokens_read(method, tokens.shape[1], words), doing):
                self._compressed = compress_document(self._model, method, tokens, options.chunk_size, fold_every, words)
        with reading(self._model, length - self._compressed.tokens, doing):
            return ask_afterwards(self._model, self._compressed, prompt)


class PrefillsForAll:
    """Each prompt is read once for all methods; without the question, each document for all questions in a row."""

    def __init__(self, model: PreTrainedModel, work: Work) -> None:
        self._model = model
        self._work = work
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
            self._dense = self._read(prompt, doing)
        return self._dense

    def _by_all_methods(self, tokens: Tensor, doing: str) -> dict[Method, CompressedDocument]:
        """A document under every method; its dense prefill is gone afterwards."""
        dense, work = self._read(tokens, doing), self._work
        with stage(f"{doing}: compressing") as shown:
            found = {}
            for method in work.methods:
                shown.show(f"{doing}: {method}, compressing")
                found[method] = document_by(dense, method, tokens, work.fold_every(method))
        return found

    def _read(self, tokens: Tensor, doing: str) -> DensePrompt:
        options = self._work.options
        with reading(self._model, tokens.shape[1], f"{doing}: reading for {len(self._work.methods)} methods"):
            work = self._work
            return dense_prompt(self._model, tokens, work.methods, options.chunk_size, options.fold, work.words)
