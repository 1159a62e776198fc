"""The options of `winnow inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.shared import Compare, Force, MethodOptions, ModelOptions, PromptOptions
from winnow.commands.options.values import plain_text, result_folder


@dataclass(frozen=True, kw_only=True)
class InspectOptions(MethodOptions, ModelOptions, PromptOptions):
    """Show what methods keep of a prompt: coverage, overlap of heads, attention lost, with pictures."""

    document: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Text file; - for standard input.", show_default="the bundled document"),
    ] = None
    question: Annotated[
        str | None,
        typer.Option(
            parser=plain_text,
            metavar="TEXT",
            help="Question to put after the document; without one, the document alone (the bundled one has its own).",
        ),
    ] = None
    compare: Compare = None
    out: Annotated[Path, typer.Option(parser=result_folder, metavar="DIR", help="Folder for the pictures.")] = Path(
        "inspect-output"
    )
    force: Force = False
    window: Annotated[
        int, typer.Option(min=1, help="Last queries whose similarity and channel saliency are measured.")
    ] = 8
    queries: Annotated[int, typer.Option(min=1, help="Last queries whose attention is measured.")] = 64
    as_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per method, not a table.")] = False
