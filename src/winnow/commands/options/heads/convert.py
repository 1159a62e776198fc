"""The options of `winnow heads convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.heads.tables import TablesOptions
from winnow.commands.options.shared import Force
from winnow.commands.options.values import plain_text, result_file


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(TablesOptions):
    """Write a table of head scores in Winnow's own format."""

    out: Annotated[
        Path, typer.Option("--output", "-o", parser=result_file, metavar="FILE", help="The .safetensors file to write.")
    ]
    mean: Annotated[bool, typer.Option("--mean", help="Average several tables, such as those of CoKV's tasks.")] = False
    model: Annotated[
        str | None,
        typer.Option(
            "--model", parser=plain_text, metavar="TEXT", help="Name of the model, instead of the one in the table."
        ),
    ] = None
    license: Annotated[
        str | None, typer.Option("--license", parser=plain_text, metavar="TEXT", help="License of the scores.")
    ] = None
    force: Force = False
