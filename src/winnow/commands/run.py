"""`winnow run`: questions about documents, answered from a compressed cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import typer
from rich.markup import escape
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from winnow.cache.fold import check_foldable
from winnow.commands.answer_stream import AnswerPrinter
from winnow.commands.answers import AnswerResult, as_json, costs_table
from winnow.commands.batch_file import Asked, read_batch, texts_of
from winnow.commands.checks import check_context, check_memory
from winnow.commands.console import output
from winnow.commands.inputs import build_methods, read_document, sampling_of
from winnow.commands.model_names import model_line
from winnow.commands.options.run import RunOptions
from winnow.commands.prefill_progress import reading
from winnow.commands.progress import stage
from winnow.commands.vocabulary import warn_of_unknown_words
from winnow.composition.method import Method
from winnow.evaluate.answering import (
    CompressedDocument,
    Prefilled,
    ask_afterwards,
    compress_document,
    finish,
    read_with_question,
)
from winnow.evaluate.prompts import document_tokens, encode_prompt
from winnow.models import ModelSource, load_model, open_model

Begin = Callable[[Asked, Method], BaseStreamer | None]
"""Told of every answer before its first token; takes its tokens if it wants them."""


@dataclass(frozen=True)
class Work:
    """Everything checked and tokenized; only the weights are missing."""

    source: ModelSource
    methods: list[Method]
    asked: list[Asked]
    prompts: list[Tensor]
    options: RunOptions


def run(options: RunOptions) -> None:
    """Answers the questions from compressed caches."""
    methods = build_methods(options.method, options.compare, options.budget, options.settings or [])
    check_memory(methods, options.device)
    _check_folds(methods, options.fold)
    asked = _questions(options.document, options.question, options.batch)
    with stage("Reading the tokenizer"):
        source = open_model(options.model)
        prompts = [encode_prompt(source.tokenizer, each.document, each.question, options.system) for each in asked]
    for each, prompt in zip(asked, prompts, strict=True):
        subject = f"{each.origin}: the prompt" if each.origin else "The prompt"
        check_context(source, prompt.shape[1], subject)
    warn_of_unknown_words(source, texts_of(asked))
    work = Work(source, methods, asked, prompts, options)
    with stage("Loading the model"):
        loaded = load_model(source, options.device, options.dtype)
    if options.as_lines:
        for result in _results(loaded, work, lambda *_: None):
            print(as_json(result, source.name), flush=True)
    else:
        _show(loaded, work)


def _questions(document: str | None, question: str | None, batch: str | None) -> list[Asked]:
    if batch is not None:
        if question is not None:
            raise typer.BadParameter(
                "cannot be used together with --batch, which has its own.", param_hint="--question"
            )
        if batch == "-" == document:
            raise typer.BadParameter("only one of --document and --batch can be standard input.")
        return read_batch(batch, None if document is None else read_document(document))
    if document is None:
        raise typer.BadParameter("give a text file to ask about.", param_hint="--document")
    if question is None or not question.strip():
        raise typer.BadParameter("give the question to answer; it cannot be empty.", param_hint="--question")
    return [Asked(read_document(document), question)]


def _check_folds(methods: Sequence[Method], fold: int | None) -> None:
    """Before any work: the methods must be able to; the whole cache may be there to compare with."""
    for number, method in enumerate(methods):
        if fold is not None and not (number and method.full):
            check_foldable(method, fold)


def _results(model: PreTrainedModel, work: Work, begin: Begin) -> Iterator[AnswerResult]:
    """Question by question, method by method."""
    documents = _CompressedDocuments(model, work)
    sampling = sampling_of(work.options)
    for number, (asked, prompt) in enumerate(zip(work.asked, work.prompts, strict=True), start=1):
        limit = min(work.options.max_new_tokens, (work.source.context or 1 << 62) - prompt.shape[1])
        for method in work.methods:
            doing = f"Question {number} of {len(work.asked)}: {method}"
            prefilled = documents.ask(asked, prompt, method, f"{doing}, reading")
            streamer = begin(asked, method)
            with nullcontext() if streamer else stage(f"{doing}, answering"):
                answer = finish(model, work.source.tokenizer, prefilled, limit, sampling, streamer)
            yield AnswerResult(asked, answer)


class _CompressedDocuments:
    """Prefills prompts. Without the question, a document is compressed once for all that ask in a row."""

    def __init__(self, model: PreTrainedModel, work: Work) -> None:
        self._model = model
        self._work = work
        self._document: str | None = None
        self._compressed: dict[Method, CompressedDocument] = {}

    def ask(self, asked: Asked, prompt: Tensor, method: Method, doing: str) -> Prefilled:
        """The prompt in a cache of its own; doing: the text of the bar."""
        options, length = self._work.options, prompt.shape[1]
        if not options.question_agnostic:
            with reading(self._model, length, doing):
                return read_with_question(self._model, method, prompt, options.chunk_size, self._fold_every(method))
        if asked.document != self._document:
            self._document, self._compressed = asked.document, {}
        if method not in self._compressed:
            self._compressed[method] = self._compress(asked, method, doing)
        document = self._compressed[method]
        with reading(self._model, length - document.tokens, doing):
            return ask_afterwards(self._model, document, prompt)

    def _compress(self, asked: Asked, method: Method, doing: str) -> CompressedDocument:
        work = self._work
        prompts = [p for a, p in zip(work.asked, work.prompts, strict=True) if a.document == asked.document]
        length = document_tokens(work.source.tokenizer, asked.document, prompts, work.options.system)
        with reading(self._model, length, doing):
            return compress_document(
                self._model, method, prompts[0][:, :length], work.options.chunk_size, self._fold_every(method)
            )

    def _fold_every(self, method: Method) -> int | None:
        """The whole cache, which others are compared with, folds nothing."""
        return None if method.full else self._work.options.fold


def _heading(model: PreTrainedModel, work: Work) -> str:
    seen = "no" if work.options.question_agnostic else "yes"
    return (
        f"{model_line(work.source, model)} · prompt: {_lengths(work.prompts)} tokens · "
        f"question seen at compression: {seen}"
    )


def _show(model: PreTrainedModel, work: Work) -> None:
    console = output()
    printer = AnswerPrinter(work.source.tokenizer, console)
    results: list[AnswerResult] = []

    def begin(asked: Asked, method: Method) -> BaseStreamer | None:
        if not results:
            console.print(_heading(model, work), style="dim", markup=False)
        if work.options.batch is not None and (not results or results[-1].asked is not asked):
            console.print(escape(asked.question), soft_wrap=True)
        return printer.begin(_named(method, work))

    try:
        for result in _results(model, work, begin):
            results.append(result)
            printer.end(result, _named(result.answer.method, work))
    finally:
        # Also when interrupted: what was finished counts.
        printer.break_off()
        if results:
            console.print()
            console.print(costs_table(results))


def _named(method: Method, work: Work) -> Method | None:
    """The method, where there are several to tell apart."""
    return method if len(work.methods) > 1 else None


def _lengths(prompts: Sequence[Tensor]) -> str:
    lengths = [prompt.shape[1] for prompt in prompts]
    least, most = min(lengths), max(lengths)
    return f"{least:,}" if least == most else f"{least:,}–{most:,}"
