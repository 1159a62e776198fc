"""Likeness of the heads of each layer, in what they keep or in how they score: a matrix of heads by heads per layer."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from winnow.report.style import FAINT, INK, add_title, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# Inches.
_LEFT, _RIGHT, _TOP, _FOOT = 0.75, 0.95, 1.2, 0.6
_GAP, _LABEL = 0.22, 0.4
_BAR = 0.15
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Up to so many heads, numbers can be read in the cells.
_WRITTEN = 8


class PairScale(NamedTuple):
    """Colors of the pairs: what they stand for, and how far they reach."""

    label: str
    high: float
    """The value of the last color; the first stands for 0."""
    colors: str
    """A color map of matplotlib; its dark end is where heads are alike."""
    head: str
    """Name of a row and of a column."""
    written: bool
    """True if values are also written where there is room."""


OVERLAP = PairScale("intersection over union", 1.0, "Blues", "KV head", written=True)


def draw_overlaps(
    path: Path | str,
    matrices: Sequence[NDArray[np.float64]],
    means: Sequence[float | None],
    title: str,
    subtitle: str = "",
) -> Path:
    """Draws the overlap [H, H] of the kept sets of every layer; returns the path written.

    means: over the pairs of heads of every layer, None where it has one head only.
    """
    return draw_pairs(path, matrices, [_caption(mean, ".2f") for mean in means], OVERLAP, title, subtitle)


def draw_divergences(
    path: Path | str,
    matrices: Sequence[NDArray[np.float64]],
    means: Sequence[float | None],
    title: str,
    subtitle: str = "",
) -> Path:
    """Draws the divergence [Hq, Hq] of the token scores of every layer, in nats; returns the path written.

    means: over the pairs of heads of every layer, None where it has one head only. Dark is where heads are alike, as in
    ApertureKV's Fig. 5. Colors end where 95 % of all pairs do: a few heads may be far from all others. Numbers are
    shown in a power of ten, as they are small.
    """
    pairs = [matrix[~np.eye(len(matrix), dtype=bool)] for matrix in matrices]
    together = np.concatenate(pairs) if pairs else np.zeros(0)
    high = float(np.quantile(together, 0.95)) if len(together) else 0.0
    power = floor(log10(high)) - 1 if high else 0
    unit = 10.0**power
    scale = PairScale(
        f"JSD, 10{str(power).translate(_RAISED)} nats", high / unit or 1.0, "Blues_r", "query head", written=False
    )
    notes = [_caption(None if mean is None else mean / unit, ".1f") for mean in means]
    return draw_pairs(path, [matrix / unit for matrix in matrices], notes, scale, title, subtitle)


def draw_pairs(
    path: Path | str,
    matrices: Sequence[NDArray[np.float64]],
    notes: Sequence[str],
    scale: PairScale,
    title: str,
    subtitle: str = "",
) -> Path:
    """Draws the matrices [H, H] of every layer as small multiples; returns the path written.

    notes: after the number of every layer. The diagonal is left gray: a head has everything in common with itself.
    """
    columns = _columns(len(matrices))
    rows = -(-len(matrices) // columns)
    side = _side(columns)
    width = max(7.0, _LEFT + columns * (side + _GAP) - _GAP + _RIGHT)
    height = _TOP + rows * (side + _LABEL) - _LABEL + _FOOT
    figure = new_figure(width, height)
    for index, (matrix, note) in enumerate(zip(matrices, notes, strict=True)):
        row, column = divmod(index, columns)
        left = _LEFT + column * (side + _GAP)
        bottom = height - _TOP - row * (side + _LABEL) - side
        axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
        readable = side > 0.24 * len(matrix) and len(matrix) <= _WRITTEN
        image = _draw_matrix(axes, matrix, scale, numbers=scale.written and readable)
        axes.set_title(f"layer {index}{note}", fontsize=8.5, color=INK, pad=4)
        lowest = index + columns >= len(matrices)
        _label_axes(axes, len(matrix), scale.head, left=column == 0, lowest=lowest)
    _draw_scale(figure, image, scale, _LEFT + columns * (side + _GAP), side)
    add_title(figure, title, subtitle, left=0.25 / width)
    return save(figure, path)


def _columns(layers: int) -> int:
    """One row of up to four, then about twice as wide as high."""
    if layers <= 4:
        return layers
    return min(8, max(4, round((2 * layers) ** 0.5)))


def _side(columns: int) -> float:
    return 2.1 if columns <= 4 else 1.35


def _draw_matrix(axes: Axes, matrix: NDArray[np.float64], scale: PairScale, numbers: bool) -> AxesImage:
    off_diagonal = np.ma.masked_array(matrix, np.eye(len(matrix), dtype=bool))
    axes.set_facecolor("#e3e3e3")
    image = axes.imshow(off_diagonal, cmap=scale.colors, vmin=0, vmax=scale.high, interpolation="nearest")
    if numbers:
        for (row, column), value in np.ndenumerate(matrix):
            if row != column:
                color = "white" if value > 0.55 else INK
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=color)
    return image


def _label_axes(axes: Axes, heads: int, head: str, left: bool, lowest: bool) -> None:
    ticks = range(0, heads, 1 if heads <= _WRITTEN else 4 if heads <= 40 else 8)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.tick_params(colors=INK, labelsize=7.5, length=2, labelleft=left, labelbottom=lowest)
    for spine in axes.spines.values():
        spine.set_color(FAINT)
    if left:
        axes.set_ylabel(head, fontsize=8.5, color=INK)
    if lowest:
        axes.set_xlabel(head, fontsize=8.5, color=INK)


def _caption(mean: float | None, form: str) -> str:
    return "" if mean is None else f": mean {mean:{form}}"


def _draw_scale(figure: Figure, image: AxesImage, scale: PairScale, left: float, side: float) -> None:
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, (height - _TOP - side) / height, _BAR / width, side / height))
    bar = figure.colorbar(image, cax=axes, ticks=[scale.high * part / 4 for part in range(5)], format="%.2g")
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8, length=2)
    bar.set_label(scale.label, fontsize=8.5, color=INK)
