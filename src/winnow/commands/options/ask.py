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
    """Ask a document that was compressed before, in another process or on another day."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="What winnow compress wrote.")]
    questions: Annotated[
        list[str],
        typer.Argument(
            parser=plain_text, metavar="QUESTION...", help="Questions; - reads one a line from standard input."
        ),
    ]
    model: Annotated[
        str | None,
        typer.Option(help="Directory, GGUF file or Hugging Face name.", show_default="the model named in FILE"),
    ] = None
    as_lines: Annotated[bool, typer.Option("--json", help="One JSON object per answer instead of text.")] = False
