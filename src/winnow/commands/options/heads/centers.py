"""The options of `winnow heads centers`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.shared import Force, ModelOptions
from winnow.commands.options.values import result_file


@dataclass(frozen=True, kw_only=True)
class CentersOptions(ModelOptions):
    """Measure the mean query of every head, for triattention(centers=FILE)."""

    document: Annotated[str, typer.Argument(metavar="DOC", help="Any coherent text; - for standard input.")]
    tokens: Annotated[int, typer.Option(min=5, help="Maximum number of tokens of the text to read.")] = 8192
    out: Annotated[
        Path, typer.Option("--out", "-o", parser=result_file, metavar="FILE", help="The .safetensors file to write.")
    ]
    force: Force = False
