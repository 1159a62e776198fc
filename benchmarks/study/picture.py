"""The study as a picture: accuracy against budget, one panel per task, the systems in color over gray baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tables import Cell, Rows
from winnow.estimate.tune.intervals import wilson
from winnow.report.style import INK, add_title, light_grid, line_style, new_figure, quiet_frame, save
from winnow.tasks import QUESTION_KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORED = ("kvec", "aperturekv", "cokv", "headkv-r2", "h2o", "adakv", "snapkv")
Value = Callable[[Cell], float]


def draw(path: Path, rows: Rows, budgets: Sequence[int], full: Cell, title: str, subtitle: str) -> Path:
    """Draws six panels: all questions with their intervals, the four tasks, coverage; returns the path."""
    figure = new_figure(13, 7.6)
    values: list[tuple[str, Value]] = [
        ("all questions", lambda cell: cell.answers.accuracy),
        *((kind, _accuracy_in(kind)) for kind in QUESTION_KINDS),
        ("coverage: tokens kept anywhere", lambda cell: cell.kept.coverage),
    ]
    for index, (name, value) in enumerate(values):
        row, column = divmod(index, 3)
        axes = figure.add_axes((0.05 + 0.265 * column, 0.53 - 0.45 * row, 0.215, 0.34))
        _panel(axes, name, rows, budgets, value)
        if index == 0:
            _intervals(axes, rows, budgets)
            lines, labels = axes.get_legend_handles_labels()
            figure.legend(lines, labels, loc="center left", bbox_to_anchor=(0.835, 0.5), frameon=False, fontsize=9.5)
        if index < len(values) - 1:
            axes.axhline(100 * value(full), color=INK, linestyle=(0, (6, 3)), linewidth=1, zorder=1)
    add_title(figure, title, subtitle, left=0.03)
    return save(figure, path)


def _accuracy_in(kind: str) -> Value:
    return lambda cell: cell.answers.accuracy_in(kind)


def _panel(axes: Axes, name: str, rows: Rows, budgets: Sequence[int], value: Value) -> None:
    quiet_frame(axes)
    for method, cells in rows.items():
        axes.plot(budgets, [100 * value(cell) for cell in cells], **_style(method))
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [str(budget) for budget in budgets])
    axes.minorticks_off()
    axes.set_ylim(0, 105)
    axes.set_yticks(range(0, 101, 20), [f"{percent}%" for percent in range(0, 101, 20)])
    light_grid(axes)
    axes.set_title(name, fontsize=11, fontweight="bold", color=INK, loc="left")
    axes.set_xlabel("budget: slots per KV head", fontsize=9, color=INK)


def _intervals(axes: Axes, rows: Rows, budgets: Sequence[int]) -> None:
    for method in COLORED:
        bounds = [wilson(cell.answers.accuracy, cell.answers.questions) for cell in rows[method]]
        low, high = ([100 * bound[side] for bound in bounds] for side in (0, 1))
        axes.fill_between(budgets, low, high, color=_style(method)["color"], alpha=0.12, linewidth=0)


def _style(method: str) -> dict[str, Any]:
    if method not in COLORED:
        gray = {"color": "#c4c4c4", "linewidth": 1.0, "zorder": 1}
        return gray | ({"label": "other methods"} if method == "random" else {})
    own = line_style(COLORED.index(method))
    return {"label": method, "linewidth": 1.7, "markersize": 4.5, "clip_on": False, "zorder": 3, **own}
