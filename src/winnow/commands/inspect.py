"""`winnow inspect`: what methods keep of a prompt, and what that costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from transformers import PreTrainedModel

import winnow
from winnow import Diagnosis, Method
from winnow.bundled import MODEL_PATH
from winnow.commands.console import messages, output
from winnow.commands.inputs import build_methods, check_memory, prepare_folder
from winnow.commands.inspect_pictures import Shown, draw_pictures
from winnow.commands.inspect_prompt import Inspected, read_inspected
from winnow.commands.inspect_table import LEGEND, diagnosis_table
from winnow.commands.options import (
    BUNDLED_MODEL,
    BudgetOption,
    CompareOption,
    Device,
    DeviceOption,
    Dtype,
    DtypeOption,
    MethodOption,
    ModelOption,
    SettingsOption,
)
from winnow.models import ModelSource, load_model, open_model
from winnow.report.style import MissingPackage


def inspect(
    document: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Text file; - for standard input.", show_default="the bundled document"),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(help="Question after the document; without one, a document alone (the bundled one has its own)."),
    ] = None,
    model: ModelOption = BUNDLED_MODEL,
    method: MethodOption = "adakv",
    budget: BudgetOption = None,
    settings: SettingsOption = None,
    compare: CompareOption = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the pictures.")] = Path("inspect-output"),
    window: Annotated[int, typer.Option(min=1, help="Last queries whose similarity is measured.")] = 8,
    queries: Annotated[int, typer.Option(min=1, help="Last queries whose attention is measured.")] = 64,
    device: DeviceOption = Device.AUTO,
    dtype: DtypeOption = Dtype.AUTO,
    as_lines: Annotated[bool, typer.Option("--json", help="One JSON object per method instead of a table.")] = False,
) -> None:
    """See what methods keep of a prompt: coverage, overlap of heads, attention lost, with pictures."""
    methods = build_methods(method, compare, budget, settings or [])
    check_memory(methods, device)
    if question is not None and not question.strip():
        raise typer.BadParameter("it cannot be empty; leave it out for the document alone.", param_hint="--question")
    prepare_folder(out)
    with messages().status("Reading the tokenizer"):
        source = open_model(model)
        inspected = read_inspected(source, document, question)
    with messages().status("Loading the model"):
        loaded = load_model(source, device, dtype)
    found = _diagnoses(loaded, inspected, methods, window, queries)
    diagnoses = _print_lines(found, source, inspected) if as_lines else _print_table(found, loaded, source, inspected)
    _draw(out, diagnoses, Shown(_name(source), inspected), to_stderr=as_lines)


def _diagnoses(
    model: PreTrainedModel, inspected: Inspected, methods: Sequence[Method], window: int, queries: int
) -> Iterator[Diagnosis]:
    for number, method in enumerate(methods, start=1):
        with messages().status(f"Diagnosing {number} of {len(methods)}: {escape(str(method))}"):
            found = winnow.diagnose(model, inspected.prompt, method, window=window, queries=queries)
        yield found


def _print_lines(found: Iterator[Diagnosis], source: ModelSource, inspected: Inspected) -> list[Diagnosis]:
    diagnoses = []
    for diagnosis in found:
        entry = {"model": source.name, "question": inspected.question} | diagnosis.as_dict()
        print(json.dumps(entry, ensure_ascii=False), flush=True)
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
            first = diagnoses[0]
            console.print(LEGEND.format(window=first.window, queries=first.queries), style="dim")
    return diagnoses


def _heading(model: PreTrainedModel, source: ModelSource, inspected: Inspected) -> str:
    asked = "no question" if inspected.question is None else f"asked: {inspected.question}"
    return (
        f"model: {_name(source)}, {str(model.dtype).removeprefix('torch.')} on {model.device.type} · "
        f"prompt: {inspected.prompt.shape[1]:,} tokens · {asked}"
    )


def _name(source: ModelSource) -> str:
    return "bundled model" if source.name == str(MODEL_PATH) else Path(source.name).name


def _draw(folder: Path, diagnoses: Sequence[Diagnosis], shown: Shown, to_stderr: bool) -> None:
    """Tables need no pictures, so a missing matplotlib is a word and no failure."""
    console = messages() if to_stderr else output()
    try:
        with messages().status("Drawing"):
            pictures = draw_pictures(folder, diagnoses, shown)
    except MissingPackage as problem:
        messages().print(str(problem), soft_wrap=True, markup=False)
        return
    console.print("\nWritten:")
    for path in pictures:
        console.print(f"  {escape(str(path))}", soft_wrap=True)
