"""The result of `winnow heads tune`, for the terminal and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from winnow.estimate.tune.answering import AnswerCount
from winnow.estimate.tune.choice import Point, Verdict
from winnow.estimate.tune.knobs import Knob
from winnow.report import BudgetLine, TuningCurve, draw_tuning


def report(console: Console, knob: Knob, points: Sequence[Point], chosen: Point, verdict: Verdict) -> None:
    """The curve as a table, then the worth of the choice."""
    console.print(_table(knob, points, chosen))
    console.print(f"\n{knob.parameter} = {chosen.value}: {_said(chosen)} on the questions that chose it,")
    console.print(f"{_said(verdict.chosen)} on others that did not.")
    if chosen.value == knob.default:
        return
    console.print(f"The default, {knob.parameter} = {knob.default}: {_said(verdict.default)} on those.")
    if not verdict.clear:
        console.print(
            "These intervals overlap, so the choice is not told from the default: ask more questions, or keep it.",
            style="yellow",
        )


def draw(path: Path, knob: Knob, points: Sequence[Point], chosen: Point, method: str, model: str) -> None:
    """The curve as a picture, by ascending values. Raises FileError where it cannot be written."""
    points = sorted(points, key=lambda point: point.value)
    lines = [
        BudgetLine(budget, [tally.accuracy for tally in tallies], [tally.interval for tally in tallies])
        for budget, tallies in _by_budget(points).items()
    ]
    mean = BudgetLine("mean", [point.accuracy for point in points], [point.interval for point in points])
    values = [str(point.value) for point in points]
    curve = TuningCurve(knob.parameter, values, lines, mean, str(chosen.value), str(knob.default))
    subtitle = f"{model}, {chosen.questions} validation questions; bands: 95 % intervals"
    draw_tuning(path, curve, f"{method}: accuracy against {knob.parameter}", subtitle)


def _table(knob: Knob, points: Sequence[Point], chosen: Point) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(knob.parameter, justify="right")
    for budget in chosen.budgets:
        table.add_column(budget, justify="right")
    table.add_column("mean", justify="right")
    table.add_column("")
    for point in points:
        marks = [
            "chosen" if point.value == chosen.value else "",
            "the default" if point.value == knob.default else "",
        ]
        cells = [_percent(tally) for tally in point.budgets.values()]
        table.add_row(str(point.value), *cells, _said(point), ", ".join(filter(None, marks)))
    return table


def _by_budget(points: Sequence[Point]) -> dict[str, list[AnswerCount]]:
    return {budget: [point.budgets[budget] for point in points] for budget in points[0].budgets}


def _percent(found: Point | AnswerCount) -> str:
    return f"{100 * found.accuracy:.1f} %"


def _said(point: Point) -> str:
    low, high = point.interval
    return f"{_percent(point)} ({100 * low:.0f}-{100 * high:.0f})"
