"""The options of `winnow export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from winnow.commands.options.shared import Force
from winnow.commands.options.values import result_file

Form = Literal["kvpress", "lm-eval", "csv", "json"]


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write the results of a run as other programs read them."""

    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that winnow eval wrote.")]
    form: Annotated[
        Form,
        typer.Option(
            "--to",
            help="kvpress: folders of its leaderboard; lm-eval: results and samples of lm-evaluation-harness; csv, "
            "json: one file.",
        ),
    ]
    out: Annotated[
        Path,
        typer.Option("--out", "-o", parser=result_file, metavar="PATH", help="A file for csv and json, else a folder."),
    ]
    force: Force = False
