"""`winnow heads`: look at tables of head scores, compare them, turn published ones into Winnow's own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from torch import Tensor

from winnow.commands.console import messages, output
from winnow.commands.formats import written_share
from winnow.commands.inputs import InputError
from winnow.heads import HeadScores, Summary, rank_correlation, read_tables, summarize, top_heads, top_overlap
from winnow.heads.readers import Halves, HeadKVKind
from winnow.report import HeadMap, draw_heatmap
from winnow.report.shades import ShadeScale, scale_of
from winnow.report.textmap import LABEL, label, squeezed, text_map

heads = typer.Typer(
    name="heads",
    help="How important each head of a model is: tables of head scores.",
    no_args_is_help=True,
    add_completion=False,
)

_MARKED = 10
# A table this small has a character cell of its own per score; a larger one has two layers in a line.
_ROWS, _COLUMNS = 40, 32
# From dark to bright, readable on black and on white; and from minus over zero to plus.
_HEAT = ((43, 30, 90), (52, 98, 150), (45, 150, 140), (120, 200, 90), (253, 231, 60))
_SIGNED = ((200, 70, 50), (235, 160, 130), (235, 235, 235), (130, 175, 220), (35, 90, 165))

Files = Annotated[list[Path], typer.Argument(help="Tables: Winnow's own, or as HeadKV, CoKV or DuoAttention publish.")]
KVHeads = Annotated[int | None, typer.Option("--kv-heads", help="Average query heads to so many KV heads per layer.")]
KindOption = Annotated[
    HeadKVKind | None, typer.Option("--kind", help="What a HeadKV table is, if its name does not say.")
]
HalvesOption = Annotated[
    Halves, typer.Option("--halves", help="Of CoKV's samples; the published code takes the first.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


class Shown(NamedTuple):
    """A table and what to call it."""

    name: str
    table: HeadScores


class Agreement(NamedTuple):
    """What two tables have in common; None where they are not of the same heads."""

    first: int
    """The first table's place in what was shown, from 1."""
    second: int
    top_half_overlap: float | None
    rank_correlation: float | None


@heads.command()
def show(
    files: Files,
    kv_heads: KVHeads = None,
    kind: KindOption = None,
    halves: HalvesOption = "both",
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw the tables into this PNG.")] = None,
    force: Force = False,
    draw_map: Annotated[bool, typer.Option("--map/--no-map", help="Draw each table in the terminal.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say what is in tables of head scores, and whether two or more of them agree."""
    if picture is not None:
        _check_free(picture, ".png", force)
    shown = _read(files, kv_heads, kind, halves)
    agreements = _agreements(shown)
    if picture is not None:
        _draw(picture, shown)
    if as_json:
        print(json.dumps(_plain(shown, agreements), indent=2))
        return
    console = output()
    for number, one in enumerate(shown, start=1):
        _describe(console, one, f"{number}  " if agreements else "", draw_map)
    if agreements:
        console.print(_agreement_table(agreements))


@heads.command()
def convert(
    sources: Files,
    target: Annotated[Path, typer.Option("--output", "-o", help="The .safetensors file to write.")],
    kv_heads: KVHeads = None,
    kind: KindOption = None,
    halves: HalvesOption = "both",
    mean: Annotated[
        bool, typer.Option("--mean", help="Average several tables, such as those of CoKV's tasks.")
    ] = False,
    model: Annotated[str | None, typer.Option("--model", help="Name of the model, in place of the one found.")] = None,
    licence: Annotated[str | None, typer.Option("--licence", help="Licence of the scores.")] = None,
    force: Force = False,
) -> None:
    """Write a table of head scores in Winnow's own format."""
    _check_free(target, ".safetensors", force)
    shown = _read(sources, kv_heads, kind, halves)
    if len(shown) > 1 and not mean:
        raise typer.BadParameter(
            f"these are {len(shown)} tables ({', '.join(one.name for one in shown)}), and one is written: give one of "
            "them, or --mean for their average."
        )
    _check_different(shown)
    table = HeadScores.mean([one.table for one in shown])
    table = replace(table, model=table.model if model is None else model, license=licence or table.license)
    table.save(target)
    layers, count = table.shape
    written = f"{target}: {table.method}, {layers} layers of {count} {_columns(table)}s"
    messages().print(written, markup=False, soft_wrap=True)


def _read(files: Sequence[Path], kv_heads: int | None, kind: HeadKVKind | None, halves: Halves) -> list[Shown]:
    tables = read_tables(files, kind, halves)
    return [
        Shown(_name(parts), table if kv_heads is None else table.grouped(kv_heads)) for parts, table in tables.items()
    ]


def _name(parts: Sequence[Path]) -> str:
    """The file, or the first of several and how many more."""
    return parts[0].name if len(parts) == 1 else f"{parts[0].name} + {len(parts) - 1}"


def _check_free(path: Path, suffix: str, force: bool) -> None:
    """Before any work is done: the name is one for such a file, and nothing is replaced unasked."""
    if path.is_dir():
        raise InputError(f"{path} is a directory; name a file in it.")
    if path.suffix.lower() != suffix:
        raise InputError(f"{path} is not a name for a {suffix} file: call it {path.with_suffix(suffix).name}.")
    if path.exists() and not force:
        raise InputError(f"{path} exists; give another name, or --force to replace it.")


def _check_different(shown: Sequence[Shown]) -> None:
    """A task that counts twice under two names would go unnoticed in an average."""
    for one, other in combinations(shown, 2):
        if one.table.shape == other.table.shape and bool((one.table.values == other.table.values).all()):
            raise InputError(
                f"{one.name} and {other.name} hold the same scores, which would count twice; leave one out."
            )


def _agreements(shown: Sequence[Shown]) -> list[Agreement]:
    numbered = [(number, one.table) for number, one in enumerate(shown, start=1)]
    return [_agreement(*one, *other) for one, other in combinations(numbered, 2)]


def _agreement(first: int, one: HeadScores, second: int, other: HeadScores) -> Agreement:
    if (one.shape, one.heads) != (other.shape, other.heads):
        return Agreement(first, second, None, None)
    correlation = rank_correlation(one, other)
    return Agreement(first, second, top_overlap(one, other), None if math.isnan(correlation) else correlation)


def _plain(shown: Sequence[Shown], agreements: Sequence[Agreement]) -> dict[str, object]:
    return {"tables": [_plain_table(one) for one in shown], "agreement": [pair._asdict() for pair in agreements]}


def _plain_table(one: Shown) -> dict[str, object]:
    summary = summarize(one.table, _MARKED)
    top = [head._asdict() for head in summary.top]
    return {"file": one.name, "shape": list(one.table.shape), **one.table.facts(), **summary._asdict(), "top": top}


def _describe(console: Console, one: Shown, number: str, draw_map: bool) -> None:
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
    """What is worth a line; facts that nobody knows are left out."""
    layers, count = table.shape
    facts = table.facts()
    yield "model", table.model or "not said"
    yield "method", table.method
    yield "shape", f"{layers} layers of {count} {_columns(table)}s"
    yield from (
        (name, str(facts[name]))
        for name in ("samples", "seed", "date", "licence", "notes", "settings")
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


def _columns(table: HeadScores) -> str:
    return "KV head" if table.heads == "kv" else "query head"


def _legend(scale: ShadeScale) -> str:
    spacing = ", square-root scale" if scale.power != 1 else ", zero in the middle" if scale.signed else ""
    return f"Rows are layers, columns are heads; {scale.low:.3g} to {scale.high:.3g}{spacing}"


def _map(table: HeadScores, console: Console) -> Iterable[Text]:
    """Coloured cells on a terminal that has colours, characters elsewhere."""
    if console.color_system is None:
        return map(Text, text_map(table, console.width))
    return _cells(table, console.width)


def _cells(table: HeadScores, width: int) -> Iterable[Text]:
    """One cell per score. Half blocks put two layers into a line, with the lower one as the background."""
    scale = scale_of([table])
    layers, count = table.shape
    wide = 2 if count <= _COLUMNS else 1
    levels = squeezed(scale.levels(table.values), (width - LABEL) // wide)
    step = 1 if layers <= _ROWS and wide == 2 else 2
    for layer in range(0, layers, step):
        line = Text.assemble((label(layer), "dim"))
        for head in range(levels.shape[1]):
            upper = _colour(levels[layer, head], scale.signed)
            if step == 1:
                line.append(" " * wide, style=f"on {upper}")
            elif layer + 1 < layers:
                line.append("▀" * wide, style=f"{upper} on {_colour(levels[layer + 1, head], scale.signed)}")
            else:
                line.append("▀" * wide, style=f"{upper}")
        yield line


def _colour(level: Tensor, signed: bool) -> str:
    """The level's colour, between two of the palette."""
    palette = _SIGNED if signed else _HEAT
    place = level.item() * (len(palette) - 1)
    below = min(int(place), len(palette) - 2)
    mixed = (a + (b - a) * (place - below) for a, b in zip(palette[below], palette[below + 1], strict=True))
    return f"rgb({','.join(str(round(part)) for part in mixed)})"


def _agreement_table(agreements: Sequence[Agreement]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("tables", "top 50% overlap", "rank correlation"):
        table.add_column(column)
    for pair in agreements:
        which = f"{pair.first} and {pair.second}"
        if pair.top_half_overlap is None:
            table.add_row(which, "not the same heads; --kv-heads averages query heads", "")
            continue
        correlation = "–" if pair.rank_correlation is None else f"{pair.rank_correlation:.3f}"
        table.add_row(which, f"{100 * pair.top_half_overlap:.1f}%", correlation)
    return table


def _draw(path: Path, shown: Sequence[Shown]) -> None:
    models = ", ".join(dict.fromkeys(one.table.model for one in shown if one.table.model))
    try:
        draw_heatmap(
            path,
            [_head_map(one) for one in shown],
            title=f"How important each head is: {models}" if models else "How important each head is",
            subtitle=f"Outlined: the {_MARKED} most important heads, unless more are equal. Bars: means of the layers.",
        )
    except OSError as problem:
        raise InputError(f"Cannot write {path}: {problem.strerror}.") from None


def _head_map(one: Shown) -> HeadMap:
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
        heads=_columns(table),
        marked=_marked(table),
    )


def _marked(table: HeadScores) -> list[tuple[int, int]]:
    """The most important heads, if they are more important than the next."""
    *top, following = top_heads(table, _MARKED + 1)
    distinct = len(top) == _MARKED and table.values[top[-1]] > table.values[following]
    return top if distinct else []
