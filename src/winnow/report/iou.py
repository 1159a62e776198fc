"""Overlap of the tokens that the heads of each layer keep: one matrix of heads by heads per layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
# Up to so many heads, numbers can be read in the cells.
_WRITTEN = 8


def draw_overlaps(
    path: Path | str,
    matrices: Sequence[NDArray[np.float64]],
    means: Sequence[float | None],
    title: str,
    subtitle: str = "",
) -> Path:
    """Draws the matrices [H, H] of every layer as small multiples; returns the path written.

    means: over the pairs of heads of every layer, None where it has one head only. The diagonal is left gray: a head
    has everything in common with itself.
    """
    columns = _columns(len(matrices))
    rows = -(-len(matrices) // columns)
    side = _side(columns)
    width = max(7.0, _LEFT + columns * (side + _GAP) - _GAP + _RIGHT)
    height = _TOP + rows * (side + _LABEL) - _LABEL + _FOOT
    figure = new_figure(width, height)
    for index, (matrix, mean) in enumerate(zip(matrices, means, strict=True)):
        row, column = divmod(index, columns)
        left = _LEFT + column * (side + _GAP)
        bottom = height - _TOP - row * (side + _LABEL) - side
        axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
        image = _draw_matrix(axes, matrix, numbers=side > 0.24 * len(matrix) and len(matrix) <= _WRITTEN)
        axes.set_title(_caption(index, mean), fontsize=8.5, color=INK, pad=4)
        lowest = index + columns >= len(matrices)
        _label_axes(axes, len(matrix), left=column == 0, lowest=lowest)
    _draw_scale(figure, image, _LEFT + columns * (side + _GAP), side)
    add_title(figure, title, subtitle, left=0.25 / width)
    return save(figure, path)


def _columns(layers: int) -> int:
    """One row of up to four, then about twice as wide as high."""
    if layers <= 4:
        return layers
    return min(8, max(4, round((2 * layers) ** 0.5)))


def _side(columns: int) -> float:
    return 2.1 if columns <= 4 else 1.35


def _draw_matrix(axes: Axes, matrix: NDArray[np.float64], numbers: bool) -> AxesImage:
    off_diagonal = np.ma.masked_array(matrix, np.eye(len(matrix), dtype=bool))
    axes.set_facecolor("#e3e3e3")
    image = axes.imshow(off_diagonal, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    if numbers:
        for (row, column), value in np.ndenumerate(matrix):
            if row != column:
                color = "white" if value > 0.55 else INK
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=color)
    return image


def _label_axes(axes: Axes, heads: int, left: bool, lowest: bool) -> None:
    ticks = range(0, heads, 1 if heads <= _WRITTEN else 4 if heads <= 40 else 8)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.tick_params(colors=INK, labelsize=7.5, length=2, labelleft=left, labelbottom=lowest)
    for spine in axes.spines.values():
        spine.set_color(FAINT)
    if left:
        axes.set_ylabel("KV head", fontsize=8.5, color=INK)
    if lowest:
        axes.set_xlabel("KV head", fontsize=8.5, color=INK)


def _caption(layer: int, mean: float | None) -> str:
    return f"layer {layer}" if mean is None else f"layer {layer}: mean {mean:.2f}"


def _draw_scale(figure: Figure, image: AxesImage, left: float, side: float) -> None:
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, (height - _TOP - side) / height, _BAR / width, side / height))
    scale = figure.colorbar(image, cax=axes, ticks=[0, 0.25, 0.5, 0.75, 1])
    scale.outline.set_visible(False)
    scale.ax.tick_params(colors=INK, labelsize=8, length=2)
    scale.set_label("intersection over union", fontsize=8.5, color=INK)
