"""Tokens that each layer keeps, by the number of heads: rows are layers, the prompt runs from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from winnow.report.style import FAINT, INK, add_title, mark_facts, new_figure, place_axes, quiet_frame, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap

# Columns of the image at most: a kept token stays visible when a column is three dots wide.
_COLUMNS = 480
# Inches.
_WIDTH, _LEFT, _WIDE, _BAR, _BAR_LEFT = 11.0, 0.85, 9.05, 0.14, 10.1
_HEAD, _FOOT, _GAP = 1.15, 0.55, 0.62
_ANY, _SPACE = 0.17, 0.07
# Characters of a label that fit beside the note; longer ones are written smaller.
_LONGEST = 42


class Strip(NamedTuple):
    """The part of the prompt that one method keeps."""

    label: str
    note: str
    """At the right of the label ("coverage 31%")."""
    counts: NDArray[np.int64]
    """[L, N] how many heads of a layer keep a token."""
    heads: int
    """KV heads of a layer, at most."""


def draw_retention(
    path: Path | str,
    strips: Sequence[Strip],
    title: str,
    subtitle: str = "",
    facts: Sequence[tuple[int, int]] = (),
) -> Path:
    """Draws one strip per method under each other, as K-VEC's Fig. 4; returns the path written.

    The row under the layers is dark where a token is kept in any of them. Prompts of more tokens than columns: a column
    shows the token kept by most heads, and the last row the share of tokens kept anywhere. facts: [start, stop) of the
    tokens that the answer needs, marked in color.
    """
    layers = max(len(strip.counts) for strip in strips)
    rows = min(3.6, max(1.0, 0.24 * layers))
    strip_height = rows + _SPACE + _ANY
    height = _HEAD + _FOOT + len(strips) * (strip_height + _GAP) - _GAP
    figure = new_figure(_WIDTH, height)
    for index, strip in enumerate(strips):
        bottom = height - _HEAD - index * (strip_height + _GAP) - strip_height
        layers_axes = place_axes(figure, _LEFT, bottom + _ANY + _SPACE, _WIDE, rows)
        any_axes = place_axes(figure, _LEFT, bottom, _WIDE, _ANY)
        _draw_layers(layers_axes, strip, facts)
        _draw_any(any_axes, strip, last=index == len(strips) - 1)
        _draw_scale(place_axes(figure, _BAR_LEFT, bottom + _ANY + _SPACE, _BAR, rows), strip.heads)
    add_title(figure, title, subtitle, left=0.035)
    return save(figure, path)


def _draw_layers(axes: Axes, strip: Strip, facts: Sequence[tuple[int, int]]) -> None:
    layers, length = strip.counts.shape
    image = np.maximum.reduceat(strip.counts, _starts(length), axis=1)
    axes.imshow(
        image, aspect="auto", cmap=_shades(strip.heads), vmin=-0.5, vmax=strip.heads + 0.5, interpolation="nearest",
        extent=(0, length, layers, 0),
    )  # fmt: skip
    for edge in range(1, layers):
        axes.axhline(edge, color="#d9d9d9", linewidth=min(0.7, 8 / layers))
    mark_facts(axes, facts, length)
    every = max(1, layers // 8)
    axes.set_yticks(np.arange(0, layers, every) + 0.5, [f"layer {index}" for index in range(0, layers, every)])
    axes.set_xlim(0, length)
    quiet_frame(axes)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.set_xticks([])
    size = 11 * min(1, _LONGEST / max(1, len(strip.label)))
    axes.set_title(strip.label, fontsize=size, fontweight="bold", color=INK, loc="left", pad=9)
    axes.set_title(strip.note, fontsize=9.5, color=INK, loc="right", pad=9)


def _draw_any(axes: Axes, strip: Strip, last: bool) -> None:
    """The share of the tokens of every column that any layer keeps."""
    length = strip.counts.shape[1]
    starts = _starts(length)
    kept = strip.counts.any(axis=0).astype(np.float64)
    shares = np.add.reduceat(kept, starts) / np.diff([*starts, length])
    axes.imshow(
        shares[None], aspect="auto", cmap="Greys", vmin=0, vmax=1.25, interpolation="nearest", extent=(0, length, 1, 0)
    )
    axes.set_xlim(0, length)
    axes.set_yticks([0.5], ["any layer"])
    quiet_frame(axes)
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.tick_params(axis="x", labelsize=8, labelbottom=last, length=3 if last else 0)
    if last:
        axes.set_xlabel(f"position in the prompt (tokens){_scope(length)}", fontsize=9, color=INK)


def _draw_scale(axes: Axes, heads: int) -> None:
    """The color bar: one field per number of heads."""
    axes.imshow(
        np.arange(heads + 1)[:, None], aspect="auto", cmap=_shades(heads), vmin=-0.5, vmax=heads + 0.5,
        origin="lower", extent=(0, 1, -0.5, heads + 0.5),
    )  # fmt: skip
    axes.set_xticks([])
    axes.yaxis.tick_right()
    every = max(1, heads // 4)
    axes.set_yticks(range(0, heads + 1, every))
    axes.tick_params(colors=INK, labelsize=8, length=2)
    axes.set_ylabel("heads that keep it", fontsize=8, color=INK, rotation=270, labelpad=11)
    axes.yaxis.set_label_position("right")
    for spine in axes.spines.values():
        spine.set_color(FAINT)


def _starts(length: int) -> NDArray[np.int64]:
    """The first token of every column."""
    columns = min(length, _COLUMNS)
    return np.arange(columns) * length // columns


def _scope(length: int) -> str:
    """The meaning of a column that stands for more than a token."""
    tokens = -(-length // _COLUMNS)
    return "" if tokens == 1 else f"; every column shows the most kept of up to {tokens} tokens"


def _shades(heads: int) -> ListedColormap:
    """Almost white for no head, then from a well visible blue to the darkest, which a single head gets."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    blues = colormaps["Blues"](np.linspace(1.0, 0.42, heads)[::-1])
    return ListedColormap(np.vstack([(0.975, 0.98, 0.99, 1.0), blues]))
