"""`winnow heads show`: tables of head scores, described, drawn and compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from winnow.commands.checks import prepare_output
from winnow.commands.console import output
from winnow.commands.formats import written_share
from winnow.commands.heads.colored_map import colored_map
from winnow.commands.heads.tables import NamedTable, columns_of, read_named_tables
from winnow.commands.options.heads.show import ShowOptions
from winnow.heads import HeadScores, Summary, rank_correlation, summarize, top_heads, top_overlap
from winnow.report import HeadMap, draw_heatmap
from winnow.report.shades import ShadeScale, scale_of
from winnow.report.textmap import text_map

_MARKED = 10


class TablePair(NamedTuple):
    """Agreement of two tables; None where they are not of the same heads."""

    first: int
    """The first table's place in what was named, from 1."""
    second: int
    top_half_overlap: float | None
    rank_correlation: float | None


def show(options: ShowOptions) -> None:
    """Prints the tables, or as JSON; draws them where a picture is asked for."""
    if options.picture is not None:
        prepare_output(options.picture, options.force, ".png")
    named = read_named_tables(options)
    pairs = _pairs(named)
    if options.picture is not None:
        _draw(options.picture, named)
    if options.as_json:
        print(json.dumps(_plain(named, pairs), indent=2))
        return
    console = output()
    for number, one in enumerate(named, start=1):
        _describe(console, one, f"{number}  " if pairs else "", options.draw_map)
    if pairs:
        console.print(_pairs_table(pairs))


def _pairs(named: Sequence[NamedTable]) -> list[TablePair]:
    numbered = [(number, one.table) for number, one in enumerate(named, start=1)]
    return [_pair(*one, *other) for one, other in combinations(numbered, 2)]


def _pair(first: int, one: HeadScores, second: int, other: HeadScores) -> TablePair:
    if (one.shape, one.heads) != (other.shape, other.heads):
        return TablePair(first, second, None, None)
    correlation = rank_correlation(one, other)
    return TablePair(first, second, top_overlap(one, other), None if math.isnan(correlation) else correlation)


def _plain(named: Sequence[NamedTable], pairs: Sequence[TablePair]) -> dict[str, object]:
    return {"tables": [_plain_table(one) for one in named], "agreement": [pair._asdict() for pair in pairs]}


def _plain_table(one: NamedTable) -> dict[str, object]:
    summary = summarize(one.table, _MARKED)
    top = [head._asdict() for head in summary.top]
    return {"file": one.name, "shape": list(one.table.shape), **one.table.facts(), **summary._asdict(), "top": top}


def _describe(console: Console, one: NamedTable, number: str, draw_map: bool) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _lines(one.table, summarize(one.table, _MARKED)):
        table.add_row(name, escape(value))
    console.print(f"{number}[bold]{escape(one.name)}[/bold]", soft_wrap=True)
    console.print(table)
    console.print()
    if draw_map:
        console.print(f"[dim]{_legend(scale_of([one.table]))}[/dim]")
        for line in _map(one.table, console):
            console.print(line, soft_wrap=True)
        console.print()


def _lines(table: HeadScores, summary: Summary) -> Iterable[tuple[str, str]]:
    """Facts that are worth a line; facts that nobody knows are left out."""
    layers, count = table.shape
    facts = table.facts()
    facts["license"] = facts["licence"]
    yield "model", table.model or "not said"
    yield "method", table.method
    yield "shape", f"{layers} layers of {count} {columns_of(table)}s"
    yield from (
        (name, str(facts[name]))
        for name in ("samples", "seed", "date", "license", "notes", "settings")
        if _known(facts[name])
    )
    yield "scores", f"{summary.low:.4g} to {summary.high:.4g}, mean {summary.mean:.4g}, sum {summary.total:.4g}"
    zero, negative = round(summary.zero * layers * count), round(summary.negative * layers * count)
    yield "zero, negative", f"{zero} and {negative} of {layers * count} heads"
    if summary.half is not None:
        share = written_share(summary.half, layers * count)
        yield "concentration", f"{summary.half} heads ({share}) hold half of the positive scores"
    yield "top heads", ", ".join(f"{head.layer}-{head.head} {head.score:.3g}" for head in summary.top)


def _known(fact: object) -> bool:
    return fact is not None and fact != ""


def _legend(scale: ShadeScale) -> str:
    spacing = ", square-root scale" if scale.power != 1 else ", zero in the middle" if scale.signed else ""
    return f"Rows are layers, columns are heads; {scale.low:.3g} to {scale.high:.3g}{spacing}"


def _map(table: HeadScores, console: Console) -> Iterable[Text]:
    """Colored cells on a terminal that has colors, characters elsewhere."""
    if console.color_system is None or console.no_color:
        return map(Text, text_map(table, console.width))
    return colored_map(table, console.width)


def _pairs_table(pairs: Sequence[TablePair]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("tables", "top 50% overlap", "rank correlation"):
        table.add_column(column)
    for pair in pairs:
        which = f"{pair.first} and {pair.second}"
        if pair.top_half_overlap is None:
            table.add_row(which, "not the same heads; --kv-heads averages query heads", "")
            continue
        correlation = "–" if pair.rank_correlation is None else f"{pair.rank_correlation:.3f}"
        table.add_row(which, f"{100 * pair.top_half_overlap:.1f}%", correlation)
    return table


def _draw(path: Path, named: Sequence[NamedTable]) -> None:
    models = ", ".join(dict.fromkeys(one.table.model for one in named if one.table.model))
    draw_heatmap(
        path,
        [_head_map(one) for one in named],
        title=f"How important each head is: {models}" if models else "How important each head is",
        subtitle=f"Outlined: the {_MARKED} most important heads, unless more are equal. Bars: means of the layers.",
    )


def _head_map(one: NamedTable) -> HeadMap:
    table = one.table
    scale = scale_of([table])
    origin = f"{table.method}, {table.samples} samples" if table.samples else table.method
    return HeadMap(
        label=one.name,
        note=origin + (", square-root scale" if scale.power != 1 else ""),
        values=table.values.numpy(),
        low=scale.low,
        high=scale.high,
        power=scale.power,
        signed=scale.signed,
        heads=columns_of(table),
        marked=_marked(table),
    )


def _marked(table: HeadScores) -> list[tuple[int, int]]:
    """The most important heads, if they are more important than the next."""
    *top, following = top_heads(table, _MARKED + 1)
    distinct = len(top) == _MARKED and table.values[top[-1]] > table.values[following]
    return top if distinct else []
