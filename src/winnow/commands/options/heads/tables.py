"""Options of the commands that read tables of head scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer


@dataclass(frozen=True, kw_only=True)
class TablesOptions:
    """Tables of head scores, and how published ones are read."""

    files: Annotated[
        list[Path], typer.Argument(help="Tables: Winnow's own, or as HeadKV, CoKV or DuoAttention publish.")
    ]
    kv_heads: Annotated[
        int | None,
        typer.Option(
            "--kv-heads",
            min=1,
            help="Average query heads to so many KV heads per layer; or those of a CoKV file that does not say it.",
        ),
    ] = None
    kind: Annotated[
        Literal["r", "er", "r2"] | None,
        typer.Option("--kind", help="What a HeadKV table is, if its name does not say."),
    ] = None
    halves: Annotated[
        Literal["both", "first"],
        typer.Option("--halves", help="Of CoKV's samples; the published code takes the first."),
    ] = "both"
