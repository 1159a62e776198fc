"""The options of `winnow benchmarks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class BenchmarksOptions:
    """List the benchmarks that winnow eval knows, their protocols, or the metrics."""

    name: Annotated[str | None, typer.Argument(help="Show only this one, with its tasks.")] = None
    protocols: Annotated[bool, typer.Option("--protocols", help="The protocols.")] = False
    metrics: Annotated[bool, typer.Option("--metrics", help="The metrics.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False
