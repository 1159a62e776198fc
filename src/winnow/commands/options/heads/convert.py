"""The options of `winnow heads convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.heads.tables import TablesOptions
from winnow.commands.options.shared import Force


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(TablesOptions):
    """Write a table of head scores in Winnow's own format."""

    out: Annotated[Path, typer.Option("--output", "-o", help="The .safetensors file to write.")]
    mean: Annotated[bool, typer.Option("--mean", help="Average several tables, such as those of CoKV's tasks.")] = False
    model: Annotated[str | None, typer.Option("--model", help="Name of the model, in place of the one found.")] = None
    license: Annotated[str | None, typer.Option("--license", help="License of the scores.")] = None
    force: Force = False
