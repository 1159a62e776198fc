"""The options of `winnow run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from winnow.commands.options.shared import Compare, GenerationOptions, MethodOptions, ModelOptions, PrefillOptions
from winnow.commands.options.values import plain_text


@dataclass(frozen=True, kw_only=True)
class RunOptions(MethodOptions, ModelOptions, PrefillOptions, GenerationOptions):
    """Ask a question about a document; answer it from a compressed cache."""

    document: Annotated[
        str | None, typer.Option(metavar="FILE", help="Text file to ask about; - for standard input.")
    ] = None
    question: Annotated[str | None, typer.Option(parser=plain_text, metavar="TEXT", help="The question.")] = None
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='JSONL file with one {"question": ...} a line; "answer" (the right one) and "document" '
            '(a path) or "context" (a text) are optional.',
        ),
    ] = None
    compare: Compare = None
    question_agnostic: Annotated[
        bool, typer.Option("--question-agnostic", help="Compress the document before the question is known.")
    ] = False
    fold: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Compress again every N answer tokens: memory stays within the budget."),
    ] = None
    as_lines: Annotated[bool, typer.Option("--json", help="One JSON object per answer instead of text.")] = False
