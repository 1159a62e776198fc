"""Tables of head scores that are named on a command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from winnow.commands.options.heads.tables import TablesOptions
from winnow.heads import HeadScores, read_tables
from winnow.heads.readers import Layout, layout_of


class NamedTable(NamedTuple):
    """A table and what to call it."""

    name: str
    table: HeadScores


def read_named_tables(options: TablesOptions) -> list[NamedTable]:
    """The tables in the files; several files can hold one table together.

    Raises typer.BadParameter for an option that is for none of them.
    """
    _check_layout(options, Layout.HEADKV, "--kind", options.kind is not None)
    _check_layout(options, Layout.COKV, "--halves", options.halves != "both")
    tables = read_tables(options.files, options.kind, options.halves, options.kv_heads)
    return [
        NamedTable(_name(parts), table if options.kv_heads is None else table.grouped(options.kv_heads))
        for parts, table in tables.items()
    ]


def columns_of(table: HeadScores) -> str:
    """The meaning of a column: "KV head" or "query head"."""
    return "KV head" if table.heads == "kv" else "query head"


def _check_layout(options: TablesOptions, layout: Layout, option: str, given: bool) -> None:
    if given and layout not in map(layout_of, options.files):
        raise typer.BadParameter(
            f"it is for tables in {layout.value}'s format, and there is none here; leave it out.", param_hint=option
        )


def _name(parts: Sequence[Path]) -> str:
    """The file, or the first of several and how many more."""
    return parts[0].name if len(parts) == 1 else f"{parts[0].name} + {len(parts) - 1}"
