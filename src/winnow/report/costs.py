"""Methods beside each other: the memory that each holds, and the speed at which it decodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from winnow.report.style import COLORS, INK, add_title, new_figure, place_axes, quiet_frame, save, short_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Inches; a label's characters are about so wide.
_WIDTH, _TOP, _FOOT, _BAR, _GAP, _EDGE = 11.0, 1.35, 0.95, 0.4, 0.35, 0.3
_CHARACTER, _LONGEST, _NARROWEST = 0.078, 42, 2.8
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_PARTS = (("compressed", COLORS[0]), ("tail", COLORS[1]), ("reserve", "#cccccc"))


class Cost(NamedTuple):
    """Bytes that one method holds, and its speed."""

    label: str
    compressed: float
    tail: float
    """Dense tokens after the prompt."""
    reserve: float
    """Room for more of them."""
    decode_speed: float | None
    """Tokens per second; None where nothing was decoded."""

    @property
    def held(self) -> float:
        """All of it."""
        return self.compressed + self.tail + self.reserve


def draw_costs(path: Path | str, costs: Sequence[Cost], full: float, title: str, subtitle: str = "") -> Path:
    """Draws two bars for every method; returns the path written.

    full: bytes of the uncompressed cache, a dashed line.
    """
    labels = short_labels([cost.label for cost in costs], _LONGEST)
    tall = _BAR * max(3, len(costs))
    left = _EDGE + _CHARACTER * max(map(len, labels)) + 0.15
    wide = max(_NARROWEST, (_WIDTH - left - _GAP - 2 * _EDGE) / 2)
    width = left + 2 * wide + _GAP + 2 * _EDGE
    figure = new_figure(width, _TOP + tall + _FOOT)
    memory = place_axes(figure, left, _FOOT, wide, tall)
    speed = place_axes(figure, left + wide + _GAP, _FOOT, wide, tall)
    _draw_memory(memory, costs, full, tall)
    _draw_speed(speed, costs)
    for axes in (memory, speed):
        quiet_frame(axes)
        axes.set_ylim(max(3, len(costs)) - 0.5, -0.5)
        axes.set_yticks([])
    memory.set_yticks(range(len(costs)), labels)
    memory.tick_params(axis="y", length=0)
    add_title(figure, title, subtitle, left=_EDGE / width)
    return save(figure, path)


def _draw_memory(axes: Axes, costs: Sequence[Cost], full: float, tall: float) -> None:
    """tall: inches of the axes."""
    name, size = next(((n, s) for n, s in _UNITS if full >= s), _UNITS[-1])
    starts = [0.0] * len(costs)
    for part, color in _PARTS:
        widths = [getattr(cost, part) / size for cost in costs]
        axes.barh(range(len(costs)), widths, left=starts, height=0.62, color=color, label=part)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.axvline(full / size, color=INK, linestyle=(0, (6, 3)), linewidth=1.2, label="full cache")
    _name_bars(axes, starts, [f"{100 * cost.held / full:.0f}%" for cost in costs])
    axes.set_xlim(0, 1.18 * max(full / size, *starts))
    axes.set_title(f"held at the end of an answer, {name}", fontsize=10, color=INK, loc="left", pad=9)
    below = (0, -0.28 / tall)
    axes.legend(loc="upper left", bbox_to_anchor=below, ncols=4, frameon=False, fontsize=9, handlelength=1.4)


def _draw_speed(axes: Axes, costs: Sequence[Cost]) -> None:
    speeds = [cost.decode_speed or 0.0 for cost in costs]
    axes.barh(range(len(costs)), speeds, height=0.62, color=COLORS[2])
    _name_bars(axes, speeds, ["–" if cost.decode_speed is None else f"{cost.decode_speed:,.0f}" for cost in costs])
    axes.set_xlim(0, 1.18 * max(*speeds, 1e-9))
    axes.set_title("decode, tokens per second", fontsize=10, color=INK, loc="left", pad=9)


def _name_bars(axes: Axes, ends: Sequence[float], texts: Sequence[str]) -> None:
    for index, (end, text) in enumerate(zip(ends, texts, strict=True)):
        axes.annotate(text, (end, index), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9, color=INK)
