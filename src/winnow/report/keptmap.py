"""Tokens that each head keeps: one strip per method, rows are heads, the prompt runs from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from winnow.report.style import FAINT, INK, add_title, mark_facts, new_figure, quiet_frame, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Columns of the image at most: a kept token stays visible when a column is three dots wide.
_COLUMNS = 560


class Panel(NamedTuple):
    """The part of the prompt that one method keeps."""

    label: str
    note: str
    """The outcome ("answers mango, right")."""
    kept: Sequence[Sequence[Sequence[int]]]
    """[layer][head] kept positions."""


def draw_kept_map(
    path: Path | str,
    panels: Sequence[Panel],
    length: int,
    title: str,
    subtitle: str = "",
    facts: Sequence[tuple[int, int]] = (),
) -> Path:
    """Draws one strip per method under each other; returns the path written.

    length: tokens of the prompt. facts: [start, stop) of the tokens that the answer needs, marked in color.
    The bars at the right give the slots of every head.
    """
    rows = sum(len(layer) for layer in panels[0].kept)
    strip = max(0.85, min(2.6, 0.062 * rows))
    gap, head, foot = 0.45, 1.08, 0.5
    height = head + foot + len(panels) * (strip + gap) - gap
    figure = new_figure(11, height)
    most = max(len(positions) for panel in panels for layer in panel.kept for positions in layer)
    for index, panel in enumerate(panels):
        bottom = (height - head - index * (strip + gap) - strip) / height
        strip_axes = figure.add_axes((0.075, bottom, 0.80, strip / height))
        bars_axes = figure.add_axes((0.895, bottom, 0.08, strip / height))
        _draw_strip(strip_axes, panel, length, facts)
        _draw_bars(bars_axes, panel, most)
        last = index == len(panels) - 1
        _label_axes(strip_axes, bars_axes, last)
        if index == 0:
            bars_axes.set_title("slots per head", fontsize=8.5, color=INK, loc="left", pad=5)
    add_title(figure, title, subtitle, left=0.035)
    return save(figure, path)


def _draw_strip(axes: Axes, panel: Panel, length: int, facts: Sequence[tuple[int, int]]) -> None:
    image = _image(panel.kept, length)
    axes.imshow(
        image, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest",
        extent=(0, length, image.shape[0], 0),
    )  # fmt: skip
    mark_facts(axes, facts, length)
    _separate_layers(axes, panel.kept, length)
    axes.set_title(panel.label, fontsize=11, fontweight="bold", color=INK, loc="left", pad=9)
    axes.set_title(panel.note, fontsize=9.5, color=INK, loc="right", pad=9)


def _image(kept: Sequence[Sequence[Sequence[int]]], length: int) -> NDArray[np.float64]:
    """[rows, columns] how dark: nothing kept is 0, one kept token of a column is already well visible."""
    columns = min(length, _COLUMNS)
    edges = np.linspace(0, length, columns + 1)
    shares = [
        np.histogram(np.asarray(positions), bins=edges)[0] / np.maximum(1, length / columns)
        for layer in kept
        for positions in layer
    ]
    share = np.clip(np.stack(shares), 0, 1)
    return np.where(share > 0, 0.45 + 0.55 * share, 0.0)


def _separate_layers(axes: Axes, kept: Sequence[Sequence[Sequence[int]]], length: int) -> None:
    edges = np.cumsum([0, *(len(layer) for layer in kept)])
    for edge in edges[1:-1]:
        axes.axhline(edge, color=FAINT, linewidth=0.7)
    every = max(1, len(kept) // 8)
    middles = (edges[:-1] + edges[1:]) / 2
    axes.set_yticks(middles[::every], [f"layer {index}" for index in range(0, len(kept), every)])
    axes.set_xlim(0, length)
    axes.set_ylim(edges[-1], 0)


def _draw_bars(axes: Axes, panel: Panel, most: int) -> None:
    counts = [len(positions) for layer in panel.kept for positions in layer]
    axes.barh(np.arange(len(counts)) + 0.5, counts, height=0.8, color="#4a90c2")
    axes.set_ylim(len(counts), 0)
    axes.set_xlim(0, most * 1.05)
    axes.set_xticks([0, most])


def _label_axes(strip: Axes, bars: Axes, last: bool) -> None:
    """Numbers only under the last strip; all share their scales."""
    for axes in (strip, bars):
        quiet_frame(axes)
        axes.tick_params(axis="y", length=0, labelsize=8)
        axes.tick_params(axis="x", labelsize=8, labelbottom=last, length=3 if last else 0)
    bars.set_yticks([])
    if last:
        strip.set_xlabel("position in the prompt (tokens)", fontsize=9, color=INK)
