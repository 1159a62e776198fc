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
    """Write the results of a run in the format of another program."""

    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that winnow eval wrote.")]
    form: Annotated[
        Form,
        typer.Option(
            "--to",
            help="Format. kvpress: folders of its leaderboard; lm-eval: results and samples of lm-evaluation-harness; "
            "csv, json: one file.",
        ),
    ]
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", parser=result_file, metavar="PATH", help="File to write (csv, json), or folder (the others)."
        ),
    ]
    force: Force = False
