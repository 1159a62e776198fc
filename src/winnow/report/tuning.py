"""Accuracy against the values of a knob: one line per budget, with the chosen value and the default."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from winnow.report.style import FAINT, INK, MARK, add_title, light_grid, line_style, new_figure, quiet_frame, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class BudgetLine(NamedTuple):
    """Accuracies at one budget, or their mean over budgets."""

    label: str
    accuracies: Sequence[float]
    """Between 0 and 1, one for every value."""
    intervals: Sequence[tuple[float, float]]


class TuningCurve(NamedTuple):
    """Accuracies of the values of a knob."""

    knob: str
    values: Sequence[str]
    lines: Sequence[BudgetLine]
    mean: BudgetLine
    """Drawn on top, in black."""
    chosen: str
    """The value that gets a mark."""
    default: str
    """That of the method, marked where it is among the values."""


def draw_tuning(path: Path | str, curve: TuningCurve, title: str, subtitle: str = "") -> Path:
    """Draws the lines over evenly spaced values; returns the path written."""
    figure = new_figure(9.5, 5.4)
    axes = figure.add_axes((0.085, 0.14, 0.68, 0.66))
    quiet_frame(axes)
    for index, line in enumerate(curve.lines):
        _draw(axes, line, line_style(index)["color"], line_style(index)["marker"], width=1.6)
    _draw(axes, curve.mean, INK, "", width=2.4)
    _mark(axes, curve.values, curve.chosen, curve.default)
    highest = max(high for line in [*curve.lines, curve.mean] for _, high in line.intervals)
    axes.set_xticks(range(len(curve.values)), list(curve.values))
    axes.set_xlim(-0.3, len(curve.values) - 0.7)
    axes.set_ylim(0, min(103, 108 * highest))
    axes.yaxis.set_major_formatter("{x:.0f}%")
    light_grid(axes)
    axes.set_xlabel(curve.knob, color=INK)
    axes.set_ylabel("questions answered right", color=INK)
    handles, labels = axes.get_legend_handles_labels()
    legend = axes.legend(
        handles[::-1],
        labels[::-1],
        loc="center left",
        bbox_to_anchor=(1.03, 0.5),
        frameon=False,
        fontsize=10,
        labelspacing=0.75,
        title="slots per KV head",
        title_fontproperties={"size": 9},
        labelcolor=INK,
    )
    legend.get_title().set_color(FAINT)
    add_title(figure, title, subtitle, left=0.035)
    return save(figure, path)


def _draw(axes: Axes, line: BudgetLine, color: str, marker: str, width: float) -> None:
    places = range(len(line.accuracies))
    low, high = ([100 * interval[side] for interval in line.intervals] for side in (0, 1))
    axes.fill_between(places, low, high, color=color, alpha=0.1, linewidth=0)
    accuracies = [100 * accuracy for accuracy in line.accuracies]
    axes.plot(places, accuracies, label=line.label, color=color, marker=marker, linewidth=width, markersize=5)


def _mark(axes: Axes, values: Sequence[str], chosen: str, default: str) -> None:
    """Vertical lines, named above the frame."""
    if default in values and default != chosen:
        axes.axvline(values.index(default), color=FAINT, linestyle=(0, (4, 3)), linewidth=1.2, zorder=0)
        _name(axes, values.index(default), "default", FAINT)
    axes.axvline(values.index(chosen), color=MARK, linewidth=1.4, zorder=0)
    _name(axes, values.index(chosen), "chosen, the default" if chosen == default else "chosen", MARK)


def _name(axes: Axes, place: int, text: str, color: str) -> None:
    axes.annotate(
        text,
        (place, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        fontsize=9,
        color=color,
    )
