"""`winnow methods`: what can be named, with its parameters."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import winnow
from winnow import MethodRecord
from winnow.commands.console import output
from winnow.errors import UnknownMethod, closest


def methods(
    name: Annotated[str | None, typer.Argument(help="Show only this one, with all its parameters.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the compression methods, and the parts that combine with them."""
    records = winnow.methods() if name is None else [_find(name)]
    if as_json:
        print(json.dumps([_plain(record) for record in records], indent=2))
    elif name is None:
        output().print(_table(records))
    else:
        _describe(output(), records[0])


def _find(name: str) -> MethodRecord:
    records = winnow.methods()
    for record in records:
        if record.name == name.lower():
            return record
    raise UnknownMethod(f"No method or part is called {name!r}: {closest(name, (r.name for r in records))}")


def _plain(record: MethodRecord) -> dict[str, object]:
    parameters = [parameter._asdict() for parameter in record.parameters]
    return record._asdict() | {"parameters": parameters}


def _table(records: list[MethodRecord]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("parameters", overflow="fold", max_width=34)
    table.add_column("what it does")
    kind = None
    for record in records:
        if kind is not None and record.kind != kind and kind == "method":
            table.add_row()
        kind = record.kind
        listed = ", ".join(f"{p.name}={_literal(p.default)}" for p in record.parameters)
        prefix = "" if record.kind == "method" else "+"
        paper = f" [dim]{escape(record.paper)}[/dim]" if record.paper else ""
        table.add_row(prefix + record.name, listed, escape(record.summary) + paper)
    return table


def _describe(console: Console, record: MethodRecord) -> None:
    console.print(f"[bold]{record.name}[/bold]  {escape(record.summary)}")
    if record.paper:
        console.print(f"[dim]{escape(record.paper)}[/dim]")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("parameter", "default", "meaning"):
        table.add_column(column)
    for parameter in record.parameters:
        table.add_row(parameter.name, _literal(parameter.default), escape(parameter.meaning))
    console.print(table if record.parameters else "It has no parameters.")


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
