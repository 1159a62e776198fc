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
        list[Path],
        typer.Argument(help="Tables of head scores: Winnow's own, or as published by HeadKV, CoKV or DuoAttention."),
    ]
    kv_heads: Annotated[
        int | None,
        typer.Option(
            "--kv-heads",
            min=1,
            help="KV heads per layer, to average query heads to, or where a CoKV file does not say how many.",
        ),
    ] = None
    kind: Annotated[
        Literal["r", "er", "r2"] | None,
        typer.Option("--kind", help="Kind of a HeadKV table, if its file name does not say."),
    ] = None
    halves: Annotated[
        Literal["both", "first"],
        typer.Option("--halves", help="Halves of CoKV's samples to use; the published code uses the first."),
    ] = "both"
