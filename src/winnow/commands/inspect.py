"""`winnow inspect`: tokens that methods keep of a prompt, and the price of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from rich.markup import escape
from transformers import PreTrainedModel

from winnow.cache.replay import Words, words_in
from winnow.commands.checks import check_memory, prepare_folder
from winnow.commands.console import messages, output
from winnow.commands.inputs import build_methods
from winnow.commands.inspect_pictures import PictureSubject, draw_pictures, picture_names
from winnow.commands.inspect_prompt import Inspected, read_inspected
from winnow.commands.inspect_table import diagnosis_table, reading_table
from winnow.commands.json_lines import json_line
from winnow.commands.loading import load
from winnow.commands.model_names import model_line, model_name
from winnow.commands.options.inspect import InspectOptions
from winnow.commands.prefill_progress import reading, tokens_read
from winnow.commands.progress import stage
from winnow.commands.prompt_options import style_of
from winnow.commands.vocabulary import warn_of_unknown_words
from winnow.composition.method import Method
from winnow.diagnostics import Diagnosis, diagnose
from winnow.models import ModelSource, open_model
from winnow.report.style import MissingPackage


def inspect(options: InspectOptions) -> None:
    """Diagnoses the methods one by one, prints and draws what was found."""
    methods = build_methods(options.method, options.compare, options.budget, options.settings or [])
    check_memory(methods, options.device)
    if options.question is not None and not options.question.strip():
        raise typer.BadParameter("it cannot be empty; leave it out for the document alone.", param_hint="--question")
    prepare_folder(options.out, picture_names(methods), options.force)
    style = style_of(options)
    with stage("Reading the tokenizer"):
        source = open_model(options.model)
        inspected = read_inspected(source, options.document, options.question, style)
    warn_of_unknown_words(source, inspected.texts)
    loaded = load(source, options)
    words = words_in(source.tokenizer, style.chat_template)
    found = _diagnoses(loaded, inspected, methods, options, words)
    if options.as_lines:
        diagnoses = _print_lines(found, source, inspected)
    else:
        diagnoses = _print_table(found, loaded, source, inspected)
    _draw(options.out, diagnoses, PictureSubject(model_name(source), inspected), to_stderr=options.as_lines)


def _diagnoses(
    model: PreTrainedModel, inspected: Inspected, methods: Sequence[Method], options: InspectOptions, words: Words
) -> Iterator[Diagnosis]:
    for number, method in enumerate(methods, start=1):
        tokens = tokens_read(method, inspected.prompt.shape[1], words)
        with reading(model, tokens, f"Diagnosing {number} of {len(methods)}: {method}"):
            found = diagnose(
                model, inspected.prompt, method, window=options.window, queries=options.queries, tokenizer=words
            )
        yield found


def _print_lines(found: Iterator[Diagnosis], source: ModelSource, inspected: Inspected) -> list[Diagnosis]:
    diagnoses = []
    for diagnosis in found:
        entry = {"model": model_name(source), "question": inspected.question} | diagnosis.as_dict()
        print(json_line(entry), flush=True)
        diagnoses.append(diagnosis)
    return diagnoses


def _print_table(
    found: Iterator[Diagnosis], model: PreTrainedModel, source: ModelSource, inspected: Inspected
) -> list[Diagnosis]:
    diagnoses: list[Diagnosis] = []
    try:
        diagnoses.extend(found)
    finally:
        # Also when interrupted: what was finished counts.
        if diagnoses:
            console = output()
            console.print(_heading(model, source, inspected), style="dim", markup=False)
            console.print()
            console.print(diagnosis_table(diagnoses))
            console.print()
            console.print(reading_table(diagnoses[0]))
    return diagnoses


def _heading(model: PreTrainedModel, source: ModelSource, inspected: Inspected) -> str:
    asked = "no question" if inspected.question is None else f"asked: {inspected.question}"
    return f"{model_line(source, model)} · prompt: {inspected.prompt.shape[1]:,} tokens · {asked}"


def _draw(folder: Path, diagnoses: Sequence[Diagnosis], subject: PictureSubject, to_stderr: bool) -> None:
    """Tables need no pictures, so a missing matplotlib is a word and no failure."""
    console = messages() if to_stderr else output()
    try:
        with stage("Drawing"):
            pictures = draw_pictures(folder, diagnoses, subject)
    except MissingPackage as problem:
        messages().print(str(problem), soft_wrap=True, markup=False)
        return
    console.print("\nWritten:")
    for path in pictures:
        console.print(f"  {escape(str(path))}", soft_wrap=True)
