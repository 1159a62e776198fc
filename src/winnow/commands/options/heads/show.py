"""The options of `winnow heads show`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.heads.tables import TablesOptions
from winnow.commands.options.shared import Force
from winnow.commands.options.values import result_file


@dataclass(frozen=True, kw_only=True)
class ShowOptions(TablesOptions):
    """Show what is in tables of head scores, and whether several of them agree."""

    picture: Annotated[
        Path | None, typer.Option("--picture", parser=result_file, metavar="PNG", help="Draw the tables as a PNG.")
    ] = None
    force: Force = False
    draw_map: Annotated[bool, typer.Option("--map/--no-map", help="Draw each table in the terminal.")] = True
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
