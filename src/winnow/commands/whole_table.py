"""Tables of which nothing is cut."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

_FOLDED = 16
"""Characters of a column to which it is folded, at least."""
_WIDEST = 10_000
"""Characters of a line where nothing limits it."""


def print_whole(console: Console, table: Table) -> None:
    """Prints a table; columns that may wrap are folded where a terminal is too narrow for them.

    Where that is not enough, and in a file or a pipe, which has no edge, lines are as long as the table is wide.
    """
    whole = _width(console, table)
    wrapping = [column for column in table.columns if not column.no_wrap]
    for column in wrapping:
        column.max_width = _FOLDED
    least = _width(console, table)
    for column in wrapping:
        column.max_width = None
    if not console.is_terminal or least > console.width:
        table.width = whole
    console.print(table, crop=False)


def _width(console: Console, table: Table) -> int:
    return console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
