"""Options of who does the work."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

Shard = tuple[int, int]
"""Part i of n, i from 0."""
_CREW = 2
"""Workers where nobody says how many."""


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Workers, and the part of the work that they do."""

    executor: Annotated[
        Literal["local", "processes", "ray"],
        typer.Option(help="Where the work is done: in this process, in several, or on a Ray cluster."),
    ] = "local"
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes or Ray actors. They are spread over the GPUs.", show_default=str(_CREW)),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Do only the I-th of N parts of the work."),
    ] = None

    @property
    def crew_size(self) -> int:
        """Number of workers; this process alone is one."""
        return 1 if self.executor == "local" else self.workers or _CREW

    @property
    def part(self) -> Shard | None:
        """The shard, read. Raises typer.BadParameter where it is of another form."""
        if self.shard is None:
            return None
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", self.shard.strip())
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise typer.BadParameter(f"{self.shard!r} is not of the form I/N, such as 2/4.", param_hint="--shard")
        return int(match[1]) - 1, int(match[2])
