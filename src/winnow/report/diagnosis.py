"""Methods beside each other: how much of the prompt they cover, and what each layer keeps and loses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from winnow.report.style import INK, add_title, light_grid, line_style, new_figure, quiet_frame, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
_WIDTH, _PLOT, _TOP, _FOOT = 11.0, 2.7, 1.3, 0.62
# Of the legend: a line, and what an entry takes besides its text and per character.
_ENTRY, _SYMBOL, _CHARACTER = 0.24, 0.75, 0.075


class Profile(NamedTuple):
    """Measures of one method; all between 0 and 1 but the errors, which may be more."""

    label: str
    coverage: float
    rtd: Sequence[float]
    """Retained-token diversity of every layer."""
    errors: Sequence[float]
    """Relative error of the attention output of every layer."""


def draw_profiles(path: Path | str, profiles: Sequence[Profile], title: str, subtitle: str = "") -> Path:
    """Draws coverage as bars, diversity and error per layer as lines; returns the path written."""
    columns = _legend_columns(profiles)
    legend = _ENTRY * -(-len(profiles) // columns) + 0.1
    plot = max(_PLOT, 0.3 * len(profiles))
    height = _TOP + plot + _FOOT + legend
    figure = new_figure(_WIDTH, height)
    bottom, tall = (legend + _FOOT) / height, plot / height
    bars = figure.add_axes((0.045, bottom, 0.25, tall))
    diversity = figure.add_axes((0.385, bottom, 0.255, tall))
    errors = figure.add_axes((0.725, bottom, 0.255, tall))
    _draw_coverage(bars, profiles)
    _draw_lines(diversity, [profile.rtd for profile in profiles], percent=True)
    diversity.set_title("kept in some head of a layer (RTD)", fontsize=10, color=INK, loc="left", pad=9)
    _draw_lines(errors, [profile.errors for profile in profiles], percent=False)
    errors.set_title("relative error of the attention output", fontsize=10, color=INK, loc="left", pad=9)
    _draw_legend(figure, errors, profiles, columns)
    add_title(figure, title, subtitle, left=0.035)
    return save(figure, path)


def _draw_coverage(axes: Axes, profiles: Sequence[Profile]) -> None:
    colors = [line_style(index)["color"] for index in range(len(profiles))]
    shares = [100 * profile.coverage for profile in profiles]
    axes.barh(range(len(profiles)), shares, height=0.62, color=colors)
    for index, share in enumerate(shares):
        axes.text(share + 1.5, index, f"{share:.1f}%", va="center", fontsize=9, color=INK)
    axes.set_ylim(max(len(profiles), 3) - 0.4, -0.6)
    axes.set_xlim(0, 118)
    axes.set_yticks([])
    axes.set_xticks(range(0, 101, 25), [f"{percent}%" for percent in range(0, 101, 25)])
    quiet_frame(axes)
    axes.set_title("kept anywhere (coverage)", fontsize=10, color=INK, loc="left", pad=9)
    axes.set_xlabel("share of the prompt's tokens", fontsize=9, color=INK)


def _draw_lines(axes: Axes, lines: Sequence[Sequence[float]], percent: bool) -> None:
    factor = 100 if percent else 1
    for index, values in enumerate(lines):
        axes.plot(
            [factor * value for value in values],
            linewidth=1.6,
            markersize=4.5 if len(values) <= 16 else 0,
            markeredgecolor="white",
            markeredgewidth=0.5,
            clip_on=False,
            **line_style(index),
        )
    layers = max(len(values) for values in lines)
    axes.set_ylim(0, max(1e-9, 1.06 * factor * max(max(values) for values in lines)))
    if percent:
        axes.yaxis.set_major_formatter("{x:g}%")
    axes.set_xlim(-0.2, layers - 0.8)
    axes.set_xticks(range(0, layers, max(1, layers // 8)))
    quiet_frame(axes)
    light_grid(axes)
    axes.set_xlabel("layer", fontsize=9, color=INK)


def _legend_columns(profiles: Sequence[Profile]) -> int:
    longest = max(len(profile.label) for profile in profiles)
    return min(len(profiles), max(1, int((_WIDTH - 0.8) / (_SYMBOL + _CHARACTER * longest))))


def _draw_legend(figure: Figure, axes: Axes, profiles: Sequence[Profile], columns: int) -> None:
    figure.legend(
        axes.get_lines(),
        [profile.label for profile in profiles],
        loc="lower left",
        bbox_to_anchor=(0.035, 0.0),
        ncols=columns,
        frameon=False,
        fontsize=9.5,
        handlelength=2.6,
        columnspacing=2.2,
        labelcolor=INK,
    )
