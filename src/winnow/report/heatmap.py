"""The importance of each head: rows are layers, columns are heads, one panel per table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from winnow.report.style import FAINT, INK, MARK, add_title, new_figure, place_axes, quiet_frame, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# Inches.
_LEFT, _RIGHT, _TOP, _FOOT, _GAP = 0.75, 0.25, 1.4, 0.75, 0.4
_TALLEST, _NARROWEST = 6.4, 2.0
_MEANS, _COLORBAR, _PAD = 0.75, 0.16, 0.12
# What a character of a label takes on average.
_CHARACTER = 0.09


class HeadMap(NamedTuple):
    """One table of head scores."""

    label: str
    note: str
    """A line under the label ("74 runs")."""
    values: NDArray[np.float64]
    """[L, H]"""
    low: float
    high: float
    """The scores that the ends of the colors stand for."""
    power: float = 1.0
    """Below 1 for scores of which a few are far above all others."""
    signed: bool = False
    """True if zero is the middle of the colors."""
    heads: str = "KV head"
    """Name of a column."""
    marked: Sequence[tuple[int, int]] = ()
    """(layer, head) of the heads to mark."""


def draw_heatmap(path: Path | str, maps: Sequence[HeadMap], title: str, subtitle: str = "") -> Path:
    """Draws the tables side by side; returns the path written.

    Marked heads have an outline. The bars at the right of a table are the means of its layers.
    """
    layers = max(len(shown.values) for shown in maps)
    tall = min(_TALLEST, max(2.2, 0.2 * layers))
    widths = [_width(shown, tall) for shown in maps]
    beside = _PAD + _MEANS + _PAD + _COLORBAR + _GAP
    width = max(6.0, sum(widths) + len(maps) * (_LEFT + beside) + _RIGHT)
    height = _TOP + tall + _FOOT
    figure = new_figure(width, height)
    left = _LEFT
    for shown, wide in zip(maps, widths, strict=True):
        _draw_map(figure, shown, (left, _FOOT, wide, tall))
        left += wide + beside + _LEFT
    add_title(figure, title, subtitle, left=0.25 / width)
    return save(figure, path)


def _width(shown: HeadMap, tall: float) -> float:
    """Square cells where there are many heads, wider ones where there are few."""
    layers, heads = shown.values.shape
    return min(1.2 * tall, max(_NARROWEST, tall * heads / layers))


def _draw_map(figure: Figure, shown: HeadMap, place: tuple[float, float, float, float]) -> None:
    """place: left, bottom, width and height of the table in inches."""
    left, bottom, wide, tall = place
    axes = place_axes(figure, left, bottom, wide, tall)
    image = _draw_cells(axes, shown)
    means = place_axes(figure, left + wide + _PAD, bottom, _MEANS, tall)
    _draw_means(means, shown)
    bar = place_axes(figure, left + wide + 2 * _PAD + _MEANS, bottom, _COLORBAR, tall)
    scale = figure.colorbar(image, cax=bar, ticks=_levels(shown))
    scale.outline.set_visible(False)
    scale.ax.tick_params(colors=INK, labelsize=8, length=2)
    inch = 1 / figure.get_figheight()
    top = (bottom + tall) * inch
    start = left / figure.get_figwidth()
    label = _shortened(shown.label, wide + 2 * _PAD + _MEANS + _COLORBAR + _GAP)
    figure.text(start, top + 0.3 * inch, label, fontsize=10, fontweight="bold", color=INK)
    figure.text(start, top + 0.11 * inch, shown.note, fontsize=8.5, color=INK)


def _draw_cells(axes: Axes, shown: HeadMap) -> AxesImage:
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Rectangle

    layers, heads = shown.values.shape
    norm = PowerNorm(shown.power, shown.low, shown.high, clip=True)
    image = axes.imshow(
        shown.values, aspect="auto", cmap="RdBu" if shown.signed else "Blues", norm=norm, interpolation="nearest"
    )
    for layer, head in shown.marked:
        axes.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, edgecolor=MARK, linewidth=1.1))
    axes.set_xticks(_ticks(heads))
    axes.set_yticks(_ticks(layers))
    axes.tick_params(colors=INK, labelsize=8, length=2)
    axes.set_xlabel(shown.heads, fontsize=9, color=INK)
    axes.set_ylabel("layer", fontsize=9, color=INK)
    for spine in axes.spines.values():
        spine.set_color(FAINT)
    return image


def _draw_means(axes: Axes, shown: HeadMap) -> None:
    means = shown.values.mean(axis=1)
    axes.barh(np.arange(len(means)), means, height=0.8, color="#4a90c2")
    axes.set_ylim(len(means) - 0.5, -0.5)
    quiet_frame(axes)
    axes.set_yticks([])
    lowest, highest = min(0.0, means.min()), max(0.0, means.max())
    ends = [end for end in (lowest, highest) if end]
    axes.set_xlim(lowest, highest if ends else 1)
    axes.set_xticks(ends, [f"{end:,.0f}" if abs(end) >= 99.5 else f"{end:.2g}" for end in ends])
    for end, text in zip(ends, axes.get_xticklabels(), strict=True):
        text.set_horizontalalignment("left" if end < 0 else "right")
    axes.tick_params(labelsize=7, length=2)
    axes.set_xlabel("mean", fontsize=8.5, color=INK)


def _levels(shown: HeadMap) -> list[float]:
    """Round scores between the ends of the colors."""
    from matplotlib.ticker import MaxNLocator

    return [level for level in MaxNLocator(6).tick_values(shown.low, shown.high) if shown.low <= level <= shown.high]


def _shortened(label: str, inches: float) -> str:
    """Its end, where the beginning would run into the next table."""
    fits = int(inches / _CHARACTER)
    return label if len(label) <= fits else f"…{label[1 - fits :]}"


def _ticks(count: int) -> list[int]:
    return list(range(0, count, 1 if count <= 8 else 4 if count <= 40 else 8))
