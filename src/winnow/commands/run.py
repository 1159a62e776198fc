"""`winnow run`: questions about documents, answered from a compressed cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from torch import Tensor
from transformers import PreTrainedModel

from winnow import Method
from winnow.bundled import MODEL_PATH
from winnow.cache.fold import check_foldable
from winnow.commands.answers import Result, as_json, costs_table, print_answer
from winnow.commands.batch_file import Asked, read_batch
from winnow.commands.console import messages, output
from winnow.commands.inputs import InputError, build_methods, check_memory, read_document
from winnow.commands.options import (
    BUNDLED_MODEL,
    AnswerTokensOption,
    BudgetOption,
    ChunkOption,
    CompareOption,
    Device,
    DeviceOption,
    Dtype,
    DtypeOption,
    FoldOption,
    MethodOption,
    ModelOption,
    SettingsOption,
)
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


@dataclass(frozen=True)
class Work:
    """Everything checked and tokenized; only the weights are missing."""

    source: ModelSource
    methods: list[Method]
    asked: list[Asked]
    prompts: list[Tensor]
    question_seen: bool
    max_new_tokens: int
    chunk: int | None
    fold_every: int | None = None


def run(
    document: Annotated[
        str | None, typer.Option(metavar="FILE", help="Text file to ask about; - for standard input.")
    ] = None,
    question: Annotated[str | None, typer.Option(help="The question.")] = None,
    model: ModelOption = BUNDLED_MODEL,
    method: MethodOption = "adakv",
    budget: BudgetOption = None,
    settings: SettingsOption = None,
    compare: CompareOption = None,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='JSONL file with one {"question": ...} a line; "answer" (the right one) and "document" '
            '(a path) or "context" (a text) are optional.',
        ),
    ] = None,
    question_agnostic: Annotated[
        bool, typer.Option("--question-agnostic", help="Compress the document before the question is known.")
    ] = False,
    max_new_tokens: AnswerTokensOption = 64,
    device: DeviceOption = Device.AUTO,
    dtype: DtypeOption = Dtype.AUTO,
    chunk: ChunkOption = None,
    fold: FoldOption = None,
    as_lines: Annotated[bool, typer.Option("--json", help="One JSON object per answer instead of text.")] = False,
) -> None:
    """Ask a question about a document; answer it from a compressed cache."""
    methods = build_methods(method, compare, budget, settings or [])
    check_memory(methods, device)
    _check_folds(methods, fold)
    asked = _questions(document, question, batch)
    with messages().status("Reading the tokenizer"):
        source = open_model(model)
        prompts = [encode_prompt(source.tokenizer, each.document, each.question) for each in asked]
    _check_context(source, asked, prompts)
    work = Work(source, methods, asked, prompts, not question_agnostic, max_new_tokens, chunk, fold)
    with messages().status("Loading the model"):
        loaded = load_model(source, device, dtype)
    if as_lines:
        for result in _results(loaded, work):
            print(as_json(result, source.name), flush=True)
    else:
        _show(loaded, work, batch is not None)


def _questions(document: str | None, question: str | None, batch: str | None) -> list[Asked]:
    if batch is not None:
        if question is not None:
            raise typer.BadParameter(
                "cannot be used together with --batch, which has its own.", param_hint="--question"
            )
        if batch == "-" == document:
            raise typer.BadParameter("only one of --document and --batch can be standard input.")
        asked = read_batch(batch, None if document is None else read_document(document))
        if not asked:
            raise InputError(f"{batch} has no questions; give one JSON object a line.")
        return asked
    if document is None:
        raise typer.BadParameter("give a text file to ask about.", param_hint="--document")
    if question is None or not question.strip():
        raise typer.BadParameter("give the question to answer; it cannot be empty.", param_hint="--question")
    return [Asked(read_document(document), question)]


def _check_folds(methods: Sequence[Method], fold: int | None) -> None:
    """Before any work: whether the methods can; the whole cache may be there to compare with."""
    for number, method in enumerate(methods):
        if fold is not None and not (number and method.full):
            check_foldable(method, fold)


def _check_context(source: ModelSource, asked: Sequence[Asked], prompts: Sequence[Tensor]) -> None:
    if source.context is None:
        return
    for each, prompt in zip(asked, prompts, strict=True):
        if prompt.shape[1] >= source.context:
            where = f"{each.origin}: the" if each.origin else "The"
            raise InputError(
                f"{where} prompt has {prompt.shape[1]:,} tokens and needs room for an answer; the model "
                f"reads {source.context:,} at most. Shorten the document, or use a model that reads more."
            )


def _results(model: PreTrainedModel, work: Work) -> Iterator[Result]:
    """Question by question, method by method."""
    documents = _CompressedDocuments(model, work)
    for number, (asked, prompt) in enumerate(zip(work.asked, work.prompts, strict=True), start=1):
        limit = min(work.max_new_tokens, (work.source.context or 1 << 62) - prompt.shape[1])
        for method in work.methods:
            doing = f"Question {number} of {len(work.asked)}: {escape(str(method))}"
            with messages().status(doing) as status:
                prefilled = documents.ask(asked, prompt, method)
                status.update(f"{doing}, answering")
                answer = finish(model, work.source.tokenizer, prefilled, limit)
            yield Result(asked, answer)


class _CompressedDocuments:
    """Prefills prompts. Without the question, a document is compressed once for all that ask in a row."""

    def __init__(self, model: PreTrainedModel, work: Work) -> None:
        self._model = model
        self._work = work
        self._document: str | None = None
        self._compressed: dict[Method, CompressedDocument] = {}

    def ask(self, asked: Asked, prompt: Tensor, method: Method) -> Prefilled:
        if self._work.question_seen:
            return read_with_question(self._model, method, prompt, self._work.chunk, self._fold_every(method))
        if asked.document != self._document:
            self._document, self._compressed = asked.document, {}
        if method not in self._compressed:
            self._compressed[method] = self._compress(asked, method)
        return ask_afterwards(self._model, self._compressed[method], prompt)

    def _compress(self, asked: Asked, method: Method) -> CompressedDocument:
        work = self._work
        prompts = [p for a, p in zip(work.asked, work.prompts, strict=True) if a.document == asked.document]
        length = document_tokens(work.source.tokenizer, asked.document, prompts)
        return compress_document(self._model, method, prompts[0][:, :length], work.chunk, self._fold_every(method))

    def _fold_every(self, method: Method) -> int | None:
        """The whole cache, which others are compared with, folds nothing."""
        return None if method.full else self._work.fold_every


def _heading(model: PreTrainedModel, work: Work) -> str:
    seen = "yes" if work.question_seen else "no"
    name = "bundled" if work.source.name == str(MODEL_PATH) else Path(work.source.name).name
    return (
        f"model: {name}, {str(model.dtype).removeprefix('torch.')} on {model.device.type} · "
        f"prompt: {_lengths(work.prompts)} tokens · question seen at compression: {seen}"
    )


def _show(model: PreTrainedModel, work: Work, with_questions: bool) -> None:
    console = output()
    results: list[Result] = []
    try:
        for result in _results(model, work):
            if not results:
                console.print(_heading(model, work), style="dim", markup=False)
            if with_questions and (not results or results[-1].asked is not result.asked):
                console.print(escape(result.asked.question), soft_wrap=True)
            results.append(result)
            print_answer(console, result, with_method=len(work.methods) > 1)
    finally:
        # Also when interrupted: what was finished counts.
        if results:
            console.print()
            console.print(costs_table(results))


def _lengths(prompts: Sequence[Tensor]) -> str:
    lengths = [prompt.shape[1] for prompt in prompts]
    least, most = min(lengths), max(lengths)
    return f"{least:,}" if least == most else f"{least:,}–{most:,}"
