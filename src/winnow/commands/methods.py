"""`winnow methods`: everything that can be named, with its parameters.

Winnow's own are read from a catalog beside this file, so that listing them needs no torch; `write_catalog` makes it.
The library is loaded only where plugins or installed packages bring more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from winnow.commands.console import messages, output
from winnow.commands.failures import readable
from winnow.commands.options.methods import MethodsOptions
from winnow.composition.entry_points import installed
from winnow.errors import UnknownMethod, closest

if TYPE_CHECKING:
    from winnow.composition.registry import MethodRecord

CATALOG_PATH = Path(__file__).with_name("catalog.json")

Record = dict[str, Any]
"""A `winnow.MethodRecord` as plain JSON values."""


def methods(options: MethodsOptions) -> None:
    """Prints all methods and parts, or one of them."""
    catalog: list[Record] = json.loads(CATALOG_PATH.read_text(encoding="utf-8"))
    if options.plugins or installed():
        catalog += _brought()
    records = catalog if options.name is None else _find(catalog, options.name)
    if options.as_json:
        print(json.dumps(records, indent=2))
    elif options.name is None:
        output().print(_table(records))
    else:
        for number, record in enumerate(records):
            if number:
                output().print()
            _describe(output(), record)


def as_json(record: MethodRecord) -> Record:
    """A record as the catalog has it."""
    return record._asdict() | {"parameters": [parameter._asdict() for parameter in record.parameters]}


def _brought() -> list[Record]:
    """Records of plugins and installed packages; a line for each that cannot be used."""
    from winnow.composition.known import load_installed
    from winnow.composition.names import registered_methods

    for problem in load_installed():
        messages().print(readable(problem), style="yellow", markup=False, soft_wrap=True)
    return [as_json(record) for record in registered_methods()]


def _find(catalog: list[Record], name: str) -> list[Record]:
    """The records of a name: a method and a part may share one."""
    found = [record for record in catalog if name.lower() in (record["name"], *record["aliases"])]
    if not found:
        raise UnknownMethod(f"No method or part is called {name!r}: {closest(name, (r['name'] for r in catalog))}")
    return found


def _table(records: list[Record]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("parameters", overflow="fold", max_width=34)
    table.add_column("what it does")
    previous = "method"
    for record in records:
        kind = record["kind"]
        if (previous == "method") != (kind == "method"):
            table.add_row()
        previous = kind
        listed = ", ".join(f"{p['name']}={_literal(p['default'])}" for p in record["parameters"])
        prefix = "" if kind == "method" else "+"
        paper = f" [dim]{escape(record['paper'])}[/dim]" if record["paper"] else ""
        table.add_row(prefix + record["name"], escape(listed), escape(record["summary"]) + paper)
    return table


def _describe(console: Console, record: Record) -> None:
    prefix = "" if record["kind"] == "method" else "+"
    console.print(f"[bold]{prefix}{record['name']}[/bold]  {escape(record['summary'])}")
    if record["paper"]:
        console.print(f"[dim]{escape(record['paper'])}[/dim]")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("parameter", "default", "meaning"):
        table.add_column(column)
    for parameter in record["parameters"]:
        table.add_row(parameter["name"], escape(_literal(parameter["default"])), escape(parameter["meaning"]))
    console.print(table if record["parameters"] else "It has no parameters.")


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
