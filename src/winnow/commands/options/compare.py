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
    """Compare the methods of one or several runs: paired differences with confidence intervals."""

    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that winnow eval wrote.")]
    baseline: Annotated[
        str | None,
        typer.Option(
            parser=plain_text,
            metavar="METHOD",
            help="Method to compare all others with, budget included: 'snapkv @ 10%'.",
            show_default="full; for several runs, the same method in the first",
        ),
    ] = None
    measure: Annotated[
        str | None,
        typer.Option(
            parser=plain_text, metavar="NAME", help="Measure to compare by.", show_default="that of each task"
        ),
    ] = None
    models: Annotated[bool, typer.Option("--models", help="Allow runs of different models.")] = False
    resamples: Annotated[int, typer.Option(min=100, max=10**7, metavar="N", help="Number of bootstrap resamples.")] = (
        10_000
    )
    level: Annotated[
        float, typer.Option(min=0.5, max=0.9999, metavar="P", help="Confidence level of the intervals.")
    ] = 0.95
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the bootstrap.")] = 0
    csv: Annotated[
        Path | None,
        typer.Option(parser=result_file, metavar="FILE", help="Write a CSV table, one row per comparison."),
    ] = None
    force: Force = False
    as_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per comparison, not a table.")] = False
