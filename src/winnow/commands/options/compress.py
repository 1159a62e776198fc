"""The options of `winnow compress`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.shared import AheadOptions, Force, ModelOptions, PrefillOptions, PromptOptions, Truncate
from winnow.commands.options.values import result_file


@dataclass(frozen=True, kw_only=True)
class CompressOptions(AheadOptions, ModelOptions, PromptOptions, PrefillOptions):
    """Compress a document once and save it, for any number of questions with winnow ask."""

    document: Annotated[str, typer.Argument(metavar="DOC", help="Text file; - for standard input.")]
    out: Annotated[
        Path,
        typer.Option("--out", "-o", parser=result_file, metavar="FILE", help="Context file to write (safetensors)."),
    ]
    truncate: Truncate = None
    force: Force = False
