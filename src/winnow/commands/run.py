"""`winnow run`: questions about documents, answered from a compressed cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

from rich.markup import escape
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from winnow.commands.answer_about import place_of
from winnow.commands.answer_costs import print_costs
from winnow.commands.answer_files import write_files
from winnow.commands.answer_stream import AnswerPrinter
from winnow.commands.answers import AnswerResult, as_entry
from winnow.commands.batch_file import Asked
from winnow.commands.console import output
from winnow.commands.inputs import lookup_in, sampling_of
from winnow.commands.json_lines import json_line
from winnow.commands.loading import load
from winnow.commands.model_names import model_line, model_name
from winnow.commands.options.run import RunOptions
from winnow.commands.pace import clock_time
from winnow.commands.progress import Bar, counted, stage
from winnow.commands.run_prefills import prefills_of
from winnow.commands.run_work import Work, prepare
from winnow.composition.method import Method
from winnow.evaluate.answering import finish
from winnow.evaluate.checking import check_modules

Begin = Callable[[Asked, Method], BaseStreamer | None]
"""Told of every answer before its first token; takes its tokens if it wants them."""


def run(options: RunOptions) -> None:
    """Answers the questions from compressed caches."""
    work = prepare(options)
    loaded = load(work.source, options, work.skeleton)
    check_modules(loaded, work.methods)
    results: list[AnswerResult] = []
    try:
        if options.as_lines:
            _print_lines(loaded, work, results)
        else:
            _show(loaded, work, results)
    finally:
        # Also when interrupted: what was finished counts.
        if results:
            write_files(options, work.source, results, place_of(loaded))


def _results(model: PreTrainedModel, work: Work, begin: Begin) -> Iterator[AnswerResult]:
    """Question by question, method by method."""
    prefills = prefills_of(model, work)
    sampling = sampling_of(work.options)
    with counted("Answers", len(work.asked) * len(work.methods)) as bar:
        for number, (asked, prompt) in enumerate(zip(work.asked, work.prompts, strict=True), start=1):
            for method in work.methods:
                doing = f"Question {number} of {len(work.asked)}{_left(bar)}"
                prefilled = prefills.read(asked, prompt, method, doing)
                streamer = begin(asked, method)
                with nullcontext() if streamer else stage(f"{doing}: {method}, answering"):
                    # Methods are compared by the time that a token takes.
                    lookup = None if work.compares else lookup_in(prompt, work.options)
                    answer = finish(
                        model, work.source.tokenizer, prefilled, work.room(prompt), sampling, streamer, lookup
                    )
                bar.advance()
                yield AnswerResult(asked, answer, work.compares, work.metric)


def _left(bar: Bar) -> str:
    """The time that is left for all answers, as soon as something tells."""
    left = bar.pace.left
    return "" if left is None else f" ({clock_time(left)} left for all)"


def _print_lines(model: PreTrainedModel, work: Work, results: list[AnswerResult]) -> None:
    place = place_of(model)
    for result in _results(model, work, lambda *_: None):
        print(json_line(as_entry(result, model_name(work.source)) | place), flush=True)
        results.append(result)


def _show(model: PreTrainedModel, work: Work, results: list[AnswerResult]) -> None:
    console = output()
    printer = AnswerPrinter(work.source.tokenizer, console)

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
        printer.break_off()
        if results:
            console.print()
            print_costs(console, results)


def _heading(model: PreTrainedModel, work: Work) -> str:
    seen = "no" if work.options.question_agnostic else "yes"
    return (
        f"{model_line(work.source, model)} · prompt: {_lengths(work.prompts)} tokens · "
        f"question seen at compression: {seen}"
    )


def _named(method: Method, work: Work) -> Method | None:
    """The method, where there are several to tell apart."""
    return method if work.compares else None


def _lengths(prompts: Sequence[Tensor]) -> str:
    lengths = [prompt.shape[1] for prompt in prompts]
    least, most = min(lengths), max(lengths)
    return f"{least:,}" if least == most else f"{least:,}–{most:,}"
