"""`winnow ask`: questions to a document that `winnow compress` put into a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import typer
from rich.console import Console
from rich.markup import escape
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from winnow.commands.answer_about import place_of
from winnow.commands.answer_stream import AnswerPrinter
from winnow.commands.answers import AnswerResult, as_entry
from winnow.commands.batch_file import Asked
from winnow.commands.console import output
from winnow.commands.formats import written_bytes, written_seconds, written_share, written_speed
from winnow.commands.inputs import STANDARD_INPUT, lookup_in, read_questions, sampling_of
from winnow.commands.json_lines import json_line
from winnow.commands.model_names import model_line, model_name
from winnow.commands.opened_context import OpenedContext, open_context
from winnow.commands.options.ask import AskOptions
from winnow.commands.prefill_progress import reading
from winnow.commands.progress import stage
from winnow.commands.vocabulary import warn_of_unknown_words
from winnow.evaluate import Answer
from winnow.evaluate.answering import CompressedDocument, Prefilled, ask_afterwards, finish
from winnow.evaluate.lookup import PromptLookup
from winnow.models import answer_room

Begin = Callable[[str], BaseStreamer | None]
"""Told of every question before the first token of its answer; takes the tokens if it wants them."""


def ask(options: AskOptions) -> None:
    """Answers the questions from the context in the file."""
    if any(not question.strip() for question in options.questions):
        raise typer.BadParameter("it cannot be empty.", param_hint="QUESTION")
    opened = open_context(options.file, options.model, options, options)
    if options.as_lines:
        place = place_of(opened.model)
        for result in _results(opened, options, lambda _: None):
            print(json_line(as_entry(result, model_name(opened.source)) | place), flush=True)
    else:
        _show(opened, options)


def _results(opened: OpenedContext, options: AskOptions, begin: Begin) -> Iterator[AnswerResult]:
    """Answers one by one. Unknown words are warned of in the document, or else in each question that has them."""
    foreign = False
    for number, question in enumerate(_each(options.questions)):
        prompt = opened.prompt(question)
        prefilled = _read(opened, prompt)
        if not number:
            foreign = warn_of_unknown_words(opened.source, [("the document", opened.document)])
        if not foreign:
            warn_of_unknown_words(opened.source, [("the question", question)])
        answer = _answer(opened, options, prefilled, begin(question), lookup_in(prompt, options))
        yield AnswerResult(Asked(opened.document, question), answer)


def _each(questions: Sequence[str]) -> Iterator[str]:
    """The questions in order; those of standard input as they come."""
    for question in questions:
        if question == STANDARD_INPUT:
            yield from read_questions()
        else:
            yield question.strip()


def _read(opened: OpenedContext, prompt: Tensor) -> Prefilled:
    # The document was read when the file was made; what counts here is the question.
    document = CompressedDocument(opened.context, opened.context.input_ids.shape[1], seconds=0.0)
    with reading(opened.model, prompt.shape[1] - document.tokens, "Reading the question"):
        return ask_afterwards(opened.model, document, prompt)


def _answer(
    opened: OpenedContext,
    options: AskOptions,
    prefilled: Prefilled,
    streamer: BaseStreamer | None,
    lookup: PromptLookup | None,
) -> Answer:
    limit = answer_room(opened.source.config, prefilled.prompt_tokens, options.max_new_tokens)
    with nullcontext() if streamer else stage("Answering"):
        return finish(opened.model, opened.source.tokenizer, prefilled, limit, sampling_of(options), streamer, lookup)


def _show(opened: OpenedContext, options: AskOptions) -> None:
    console = output()
    printer = AnswerPrinter(opened.source.tokenizer, console)
    several = len(options.questions) > 1 or STANDARD_INPUT in options.questions
    answers: list[Answer] = []

    def begin(question: str) -> BaseStreamer | None:
        if not answers:
            _print_heading(console, opened)
        if several:
            console.print(escape(question), soft_wrap=True)
        return printer.begin()

    try:
        for result in _results(opened, options, begin):
            printer.end(result)
            answers.append(result.answer)
    finally:
        # Also when interrupted: what was answered counts.
        printer.break_off()
        if answers:
            _print_costs(console, answers)


def _print_heading(console: Console, opened: OpenedContext) -> None:
    stats = opened.context.stats()
    console.print(
        f"{model_line(opened.source, opened.model)} · "
        f"document: {opened.context.input_ids.shape[1]:,} tokens, {opened.context.method} · "
        f"held: {written_bytes(stats.used_bytes)}, {written_share(stats.used_bytes, stats.full_bytes)} of full",
        style="dim",
        markup=False,
        soft_wrap=True,
    )


def _print_costs(console: Console, answers: Sequence[Answer]) -> None:
    steps, seconds = sum(each.decode_steps for each in answers), sum(each.decode_seconds for each in answers)
    first = sum(each.prefill_seconds for each in answers) / len(answers)
    speed = written_speed(steps / seconds if steps and seconds else None)
    console.print(f"first token after {written_seconds(first)} · decode {speed}", style="dim", markup=False)
