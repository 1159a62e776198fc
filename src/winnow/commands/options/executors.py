"""Options of who does the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Workers, and the part of the work that they do."""

    executor: Annotated[
        Literal["local", "processes", "ray"],
        typer.Option(help="Who works: this process, several, or a Ray cluster."),
    ] = "local"
    workers: Annotated[int, typer.Option(min=1, help="Processes or Ray actors; they take the GPUs in turn.")] = 2
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Do the I-th of N parts of the work only."),
    ] = None
