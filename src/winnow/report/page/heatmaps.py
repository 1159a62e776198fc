"""Heatmaps: scores by the length of a prompt and the depth at which it hides what is asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from winnow.report.page.methods import MethodName
from winnow.report.page.quantities import SCORE
from winnow.report.page.results import RowValues
from winnow.report.page.slices import Slices, number

_MOST_STEPS = 40
"""Lengths or depths up to which a table has one row or column for each."""


class Square(NamedTuple):
    """Examples of one length and depth."""

    mean: float
    examples: int


class Heatmap(NamedTuple):
    """Scores of a method on a task."""

    task: str
    method: MethodName
    lengths: tuple[float, ...]
    depths: tuple[float, ...]
    squares: tuple[tuple[Square | None, ...], ...]
    """A row for every depth, a square for every length; None where nothing was asked."""


def heatmaps_of(slices: Slices, judged: RowValues, methods: Sequence[MethodName]) -> Iterator[Heatmap]:
    """Those of tasks whose examples have both facts, in at least two depths."""
    for task in slices.tasks:
        if SCORE not in judged.by_task[task]:
            continue
        grids = [(method, _grid(slices, judged, method, task)) for method in methods]
        lengths = tuple(sorted({length for _, grid in grids for length, _ in grid}))
        depths = tuple(sorted({depth for _, grid in grids for _, depth in grid}))
        if len(depths) < 2 or max(len(lengths), len(depths)) > _MOST_STEPS:
            continue
        for method, grid in grids:
            if grid:
                squares = tuple(tuple(grid.get((length, depth)) for length in lengths) for depth in depths)
                yield Heatmap(task, method, lengths, depths, squares)


def _grid(slices: Slices, judged: RowValues, method: MethodName, task: str) -> dict[tuple[float, float], Square]:
    found: dict[tuple[float, float], list[float]] = defaultdict(list)
    for origin in slices.rows(method.text, task, None):
        length, depth = number(origin.row, "length"), number(origin.row, "depth")
        value = judged.of(origin.row).get(SCORE)
        if length is not None and depth is not None and value is not None:
            found[length, depth].append(value)
    return {place: Square(fmean(values), len(values)) for place, values in found.items()}
