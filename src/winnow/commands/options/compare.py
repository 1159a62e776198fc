"""The options of `winnow compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.shared import Force
from winnow.commands.options.values import plain_text, result_file


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare methods of a run, or runs: paired differences with their intervals."""

    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that winnow eval wrote.")]
    baseline: Annotated[
        str | None,
        typer.Option(
            parser=plain_text,
            metavar="METHOD",
            help="Method that all others are compared with, budget included: 'snapkv @ 10%'.",
            show_default="full; among several runs the same method of the first",
        ),
    ] = None
    measure: Annotated[
        str | None,
        typer.Option(parser=plain_text, metavar="NAME", help="Compare by this one.", show_default="the task's own"),
    ] = None
    models: Annotated[bool, typer.Option("--models", help="The runs are of different models, which is meant.")] = False
    resamples: Annotated[int, typer.Option(min=100, max=10**7, metavar="N", help="Resamples of the bootstrap.")] = (
        10_000
    )
    level: Annotated[float, typer.Option(min=0.5, max=0.9999, metavar="P", help="Level of the intervals.")] = 0.95
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the bootstrap.")] = 0
    csv: Annotated[
        Path | None, typer.Option(parser=result_file, metavar="FILE", help="Write a table, one row per comparison.")
    ] = None
    force: Force = False
    as_lines: Annotated[bool, typer.Option("--json", help="One JSON object per comparison instead of a table.")] = False
