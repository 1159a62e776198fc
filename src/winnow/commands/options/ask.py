"""The options of `winnow ask`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.shared import DeviceOptions, GenerationOptions, PromptOptions
from winnow.commands.options.values import plain_text


@dataclass(frozen=True, kw_only=True)
class AskOptions(DeviceOptions, PromptOptions, GenerationOptions):
    """Answer questions about a document that winnow compress saved."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="Context that winnow compress wrote.")]
    questions: Annotated[
        list[str],
        typer.Argument(
            parser=plain_text, metavar="QUESTION...", help="Questions; - reads one per line from standard input."
        ),
    ]
    model: Annotated[
        str | None,
        typer.Option(
            help="Model: a directory, GGUF file or Hugging Face name.", show_default="the model named in FILE"
        ),
    ] = None
    as_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per answer, not text.")] = False
