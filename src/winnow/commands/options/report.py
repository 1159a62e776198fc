"""The options of `winnow report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.values import plain_text, result_folder


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write a web page about runs of winnow eval: pictures, tables and predictions, to open offline."""

    runs: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, or folders of such folders.")]
    out: Annotated[
        Path, typer.Option("--out", "-o", parser=result_folder, metavar="DIR", help="Folder for the report.")
    ] = Path("report")
    title: Annotated[
        str | None,
        typer.Option(parser=plain_text, metavar="TEXT", help="Title of the page.", show_default="what was run"),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace an existing report.")] = False
