"""The work of `winnow run`: everything that its options name, read, tokenized and checked before weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import typer
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.fold import check_foldable
from winnow.cache.replay import Words, words_in
from winnow.commands.ahead import tell_of_blind_methods
from winnow.commands.batch_file import Asked, check_judgeable, read_batch, texts_of
from winnow.commands.checks import check_context, check_memory, prepare_output
from winnow.commands.console import messages
from winnow.commands.inputs import build_sweep, read_document
from winnow.commands.loading import check_methods
from winnow.commands.options.run import RunOptions
from winnow.commands.progress import stage
from winnow.commands.prompt_options import shortened, style_of
from winnow.commands.vocabulary import warn_of_unknown_words
from winnow.composition.method import Method
from winnow.evaluate.prompts import document_tokens, encode_prompt
from winnow.metrics import Metric, metric
from winnow.models import ModelSource, answer_room, open_model
from winnow.report.style import check_drawable
from winnow.tasks.prompt_style import PromptStyle


@dataclass(frozen=True)
class Work:
    """Everything checked and tokenized; only the weights are missing."""

    source: ModelSource
    skeleton: PreTrainedModel
    methods: list[Method]
    asked: list[Asked]
    prompts: list[Tensor]
    style: PromptStyle
    options: RunOptions
    metric: Metric

    @property
    def compares(self) -> bool:
        """True if there are several methods, which share their prefills."""
        return len(self.methods) > 1

    @property
    def words(self) -> Words:
        """Those around a prompt, for methods that have it read a second time."""
        return words_in(self.source.tokenizer, self.style.chat_template)

    def fold_every(self, method: Method) -> int | None:
        """The whole cache, which others are compared with, folds nothing."""
        return None if method.uncompressed else self.options.fold

    def room(self, prompt: Tensor) -> int:
        """Tokens that the answer to a prompt [1, N] may have."""
        return answer_room(self.source.config, prompt.shape[1], self.options.max_new_tokens)

    def document_part(self, asked: Asked) -> Tensor:
        """[1, M] the tokens that all prompts of a document begin with."""
        prompts = [p for a, p in zip(self.asked, self.prompts, strict=True) if a.document == asked.document]
        length = document_tokens(self.source.tokenizer, asked.document, prompts, self.style)
        return prompts[0][:, :length]


def prepare(options: RunOptions) -> Work:
    """Checks what is cheap first: options, files of results, texts, configuration and tokenizer, methods."""
    methods = build_sweep(options.method, options.compare, options.all_budgets, options.settings or [])
    check_memory(methods, options.device)
    _check_folds(methods, options.fold)
    _check_results(options)
    asked = _questions(options.document, options.question, options.batch)
    style = style_of(options)
    if options.question_agnostic:
        style.check_question_last()
        if len(methods) == 1:  # who compares methods finds out
            tell_of_blind_methods(methods, messages())
    judged = metric(options.metric)
    check_judgeable(asked, judged)
    with stage("Reading the tokenizer"):
        source = open_model(options.model)
        if options.truncate:
            asked = _without_middles(source, asked, style, options)
        prompts = [encode_prompt(source.tokenizer, each.document, each.question, style) for each in asked]
    for each, prompt in zip(asked, prompts, strict=True):
        check_context(source, prompt.shape[1], _subject(each), can_cut=True)
    skeleton = check_methods(source, options, methods, [prompt.shape[1] for prompt in prompts], options.fold)
    warn_of_unknown_words(source, texts_of(asked))
    return Work(source, skeleton, methods, asked, prompts, style, options, judged)


def _without_middles(
    source: ModelSource, asked: Sequence[Asked], style: PromptStyle, options: RunOptions
) -> list[Asked]:
    """The same questions, each about what the model can read of its document."""
    room = options.max_new_tokens
    if not options.question_agnostic:
        cuts = [shortened(source, each.document, [each.question], style, room, _subject(each)) for each in asked]
        return [replace(each, document=cut) for each, cut in zip(asked, cuts, strict=True)]
    # A document that is read before any question must be the same for all of them.
    groups: dict[str, list[Asked]] = {}
    for each in asked:
        groups.setdefault(each.document, []).append(each)
    cut_documents = {
        document: shortened(source, document, [each.question for each in group], style, room, _subject(group[0]))
        for document, group in groups.items()
    }
    return [replace(each, document=cut_documents[each.document]) for each in asked]


def _subject(each: Asked) -> str:
    return f"{each.origin}: the prompt" if each.origin else "The prompt"


def _check_folds(methods: Sequence[Method], fold: int | None) -> None:
    """The methods must be able to; the whole cache may be there to compare with."""
    for number, method in enumerate(methods):
        if fold is not None and not (number and method.uncompressed):
            check_foldable(method, fold)


def _check_results(options: RunOptions) -> None:
    """Files of results can be written, and pictures drawn."""
    if options.csv is not None:
        prepare_output(options.csv, options.force, ".csv")
    if options.picture is not None:
        prepare_output(options.picture, options.force, ".png")
        check_drawable()


def _questions(document: str | None, question: str | None, batch: str | None) -> list[Asked]:
    if batch is not None:
        if question is not None:
            raise typer.BadParameter(
                "cannot be combined with --batch, which has its own questions.", param_hint="--question"
            )
        if batch == "-" == document:
            raise typer.BadParameter("only one of --document and --batch can be standard input.")
        return read_batch(batch, None if document is None else read_document(document))
    if document is None:
        raise typer.BadParameter("give a text file to ask about.", param_hint="--document")
    if question is None or not question.strip():
        raise typer.BadParameter("give the question to answer; it cannot be empty.", param_hint="--question")
    return [Asked(read_document(document), question)]
