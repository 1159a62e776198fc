"""Accuracy against budget, one line per method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from winnow.report.style import (
    FAINT,
    INK,
    add_title,
    light_grid,
    line_style,
    new_figure,
    place_axes,
    quiet_frame,
    save,
    short_labels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Inches: those of the lines, the least of a figure, and what a label takes besides its characters, and for each.
_LEFT, _FOOT, _WIDE, _TOP = 0.8, 0.76, 6.3, 0.92
_WIDTH, _HEIGHT, _ENTRY = 9.5, 5.4, 0.29
_SYMBOL, _CHARACTER, _LONGEST = 0.9, 0.084, 26
# Share of the axis between the texts of two budgets, at least.
_APART = 0.06
RIGHT = "questions answered right"


class Line(NamedTuple):
    """A method's accuracy at several budgets."""

    label: str
    points: Sequence[tuple[float, float]]
    """(slots per KV head, accuracy between 0 and 1), in order of the slots."""


def draw_accuracy(
    path: Path | str,
    lines: Sequence[Line],
    title: str,
    subtitle: str = "",
    full: float | None = None,
    prompt_tokens: float | None = None,
    measured: str = RIGHT,
) -> Path:
    """Draws the lines over a logarithmic axis; returns the path written.

    full: accuracy of the uncompressed cache, a dashed line. prompt_tokens: mean length of the prompts, which
    gives every budget as a share of it, too. measured: the accuracy in words. The legend lists the best mean accuracy
    first.
    """
    ordered = _best_first(lines)
    labels = short_labels([line.label for line in ordered], _LONGEST)
    width = max(_WIDTH, _LEFT + _WIDE + _SYMBOL + _CHARACTER * max(map(len, labels)))
    height = max(_HEIGHT, _TOP + _FOOT + _ENTRY * (len(lines) + 1))
    figure = new_figure(width, height)
    axes = place_axes(figure, _LEFT, _FOOT, _WIDE, height - _FOOT - _TOP)
    quiet_frame(axes)
    budgets = sorted({slots for line in lines for slots, _ in line.points})
    if full is not None:
        _draw_full(axes, full, budgets[0])
    for index, (line, label) in enumerate(zip(ordered, labels, strict=True)):
        _draw(axes, line, label, index)
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, _ticks(budgets, prompt_tokens))
    axes.minorticks_off()
    axes.set_ylim(0, 105)
    axes.set_yticks(range(0, 101, 20), [f"{percent}%" for percent in range(0, 101, 20)])
    light_grid(axes)
    of_prompt = " (and share of the prompt)" if prompt_tokens else ""
    axes.set_xlabel(f"budget: slots kept per KV head{of_prompt}", color=INK)
    axes.set_ylabel(measured, color=INK)
    _name_lines(axes)
    add_title(figure, title, subtitle, left=0.035)
    return save(figure, path)


def _draw_full(axes: Axes, accuracy: float, first: float) -> None:
    """The accuracy of the full cache, named at the first budget."""
    axes.axhline(100 * accuracy, color=INK, linestyle=(0, (6, 3)), linewidth=1.2, zorder=1)
    axes.annotate(
        f"full cache: {100 * accuracy:.0f}%",
        (first, 100 * accuracy),
        xytext=(0, 4),
        textcoords="offset points",
        fontsize=9,
        color=INK,
    )


def _draw(axes: Axes, line: Line, label: str, index: int) -> None:
    slots, accuracies = zip(*line.points, strict=True)
    axes.plot(
        slots,
        [100 * accuracy for accuracy in accuracies],
        label=label,
        linewidth=1.8,
        markersize=5.5,
        markeredgecolor="white",
        markeredgewidth=0.6,
        clip_on=False,
        **line_style(index),
    )


def _name_lines(axes: Axes) -> None:
    """The legend, beside the lines."""
    axes.legend(
        loc="center left",
        bbox_to_anchor=(1.03, 0.5),
        frameon=False,
        fontsize=10,
        handlelength=2.8,
        labelspacing=0.75,
        title="best mean first",
        title_fontproperties={"size": 9},
        labelcolor=INK,
    ).get_title().set_color(FAINT)


def _best_first(lines: Sequence[Line]) -> list[Line]:
    def mean(line: Line) -> float:
        return sum(accuracy for _, accuracy in line.points) / len(line.points)

    return sorted(lines, key=mean, reverse=True)


def _ticks(budgets: Sequence[float], prompt_tokens: float | None) -> list[str]:
    """Texts of budgets in ascending order; none where one would run into that before it."""
    texts, nearest = [], (budgets[-1] / budgets[0]) ** _APART
    before = 0.0
    for slots in budgets:
        far = slots >= before * nearest
        texts.append(_tick(slots, prompt_tokens) if far else "")
        before = slots if far else before
    return texts


def _tick(slots: float, prompt_tokens: float | None) -> str:
    if not prompt_tokens:
        return f"{slots:g}"
    share = 100 * slots / prompt_tokens
    return f"{slots:g}\n{share:.0f}%" if share >= 10 else f"{slots:g}\n{share:.2g}%"
