"""The options of `winnow benchmarks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class BenchmarksOptions:
    """List the benchmarks of winnow eval, its protocols or its metrics."""

    name: Annotated[str | None, typer.Argument(help="Benchmark to show, with its tasks.")] = None
    protocols: Annotated[bool, typer.Option("--protocols", help="List the protocols.")] = False
    metrics: Annotated[bool, typer.Option("--metrics", help="List the metrics.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
