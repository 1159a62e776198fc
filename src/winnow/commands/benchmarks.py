"""`winnow benchmarks`: benchmarks, protocols and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from winnow.commands.console import output
from winnow.commands.options.benchmarks import BenchmarksOptions
from winnow.metrics import metrics
from winnow.tasks.benchmark import Benchmark
from winnow.tasks.protocols import protocols
from winnow.tasks.registry import benchmark
from winnow.tasks.registry import benchmarks as all_benchmarks

Line = tuple[str, str, str]
"""A name, what it is, and what stands behind it dimmed."""


def benchmarks(options: BenchmarksOptions) -> None:
    """Prints a list, or one benchmark with its tasks. Raises BadParameter for several of them at once."""
    if (options.name is not None) + options.protocols + options.metrics > 1:
        raise typer.BadParameter("give only one of a benchmark's name, --protocols and --metrics.")
    if options.protocols:
        _print_list([(each.name, each.summary, each.source) for each in protocols()], options)
    elif options.metrics:
        _print_list([(each.name, each.summary, "") for each in metrics()], options)
    elif options.name is None:
        _print_list([(each.name, each.summary, each.source) for each in all_benchmarks()], options)
    else:
        _describe(output(), benchmark(options.name), options.as_json)


def _print_list(lines: Iterable[Line], options: BenchmarksOptions) -> None:
    if options.as_json:
        print(
            json.dumps([{"name": name, "summary": summary, "source": more} for name, summary, more in lines], indent=2)
        )
    else:
        output().print(_table(lines))


def _table(lines: Iterable[Line]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, summary, more in lines:
        # In a line of its own: without colors nothing else would divide the two.
        table.add_row(name, escape(summary) + (f"\n[dim]{escape(more)}[/dim]" if more else ""))
    return table


def _describe(console: Console, found: Benchmark, as_json: bool) -> None:
    fitting = [each.name for each in protocols() if not each.benchmarks or found.name in each.benchmarks]
    if as_json:
        facts = {name: value for name, value in asdict(found).items() if name != "load"}
        print(json.dumps({**facts, "protocols": fitting}, indent=2))
        return
    console.print(f"[bold]{found.name}[/bold]  {escape(found.summary)}")
    console.print(f"[dim]{escape(found.source)}[/dim]")
    console.print(_table((name, summary, "") for name, summary in found.tasks.items()))
    console.print(f"texts: {escape(found.data)}" if found.data else "texts: none needed")
    if found.lengths:
        console.print(f"lengths: {', '.join(map(str, found.lengths))} tokens per prompt, or those of --lengths")
    console.print(f"protocols: {', '.join(fitting)}", soft_wrap=True)
