"""The fidelity study as pictures: error against bytes, and accuracy against bytes of the whole cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from answers import Tally
from pages import Errors
from winnow.report.style import INK, add_title, light_grid, line_style, new_figure, quiet_frame, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MIXTURES = ("SPARK-p, SPARK-g", "bits by head score", "SPARK + bits", "ThinK + KIVI")
HOLLOW = {"linestyle": "none", "markerfacecolor": "white"}
TICKS = (1, 2, 5, 10, 20, 50, 100)


def draw_errors(path: Path, families: Mapping[str, Sequence[str]], errors: Errors, subtitle: str) -> Path:
    """A panel per model: attention output error of every store against its bytes."""
    figure = new_figure(13.5, 4.9)
    for index, (model, found) in enumerate(errors.items()):
        axes = figure.add_axes((0.055 + 0.27 * index, 0.13, 0.225, 0.63))
        quiet_frame(axes)
        for number, (family, stores) in enumerate(families.items()):
            points = sorted(found[store] for store in stores if store in found)
            # Families of one knob are curves, mixtures are points.
            line = line_style(number) | (HOLLOW if family in MIXTURES else {})
            axes.plot([100 * p.share for p in points], [100 * p.error for p in points], label=family, **line)
        axes.set_yscale("log")
        axes.set_yticks(TICKS, [f"{tick}%" for tick in TICKS])
        axes.minorticks_off()
        axes.set_ylim(0.5, 200)
        axes.set_title(model, fontsize=11, fontweight="bold", color=INK, loc="left")
        _label(axes, "bytes of the dense slots, %", "relative error of a head's output" if index == 0 else "")
        if index == 0:
            lines, labels = axes.get_legend_handles_labels()
            figure.legend(lines, labels, loc="center left", bbox_to_anchor=(0.855, 0.5), frameon=False, fontsize=9)
    add_title(figure, "What packing costs attention, and what it saves", subtitle, left=0.03)
    return save(figure, path)


def draw_frontier(
    path: Path, rows: Mapping[str, Sequence[Tally | None]], shares: Sequence[float], full: Tally, subtitle: str
) -> Path:
    """Accuracy of every combination against its bytes; the best of each eviction with and without packing in color."""
    figure = new_figure(10.5, 6)
    axes = figure.add_axes((0.07, 0.105, 0.66, 0.73))
    quiet_frame(axes)
    shown = _colored(rows)
    for name, row in rows.items():
        points = [(share, 100 * tally.accuracy) for share, tally in zip(shares, row, strict=True) if tally]
        if name in shown:
            style = line_style(shown.index(name)) | {"label": name, "zorder": 3, "linewidth": 1.7}
        else:
            style = {"color": "#d0d0d0", "linewidth": 0.9, "zorder": 1}
        axes.plot(*zip(*points, strict=True), **style)
    axes.axhline(100 * full.accuracy, color=INK, linestyle=(0, (6, 3)), linewidth=1, label="full cache")
    axes.set_xscale("log")
    axes.set_xticks(shares, [f"{share:g}%" for share in shares])
    axes.minorticks_off()
    axes.set_ylim(0, 104)
    _label(axes, "bytes of the compressed prompt, share of the full cache", "questions answered exactly, %")
    lines, labels = axes.get_legend_handles_labels()
    figure.legend(lines, labels, loc="center left", bbox_to_anchor=(0.75, 0.5), frameon=False, fontsize=9)
    add_title(figure, "Accuracy in a share of the full cache's bytes", subtitle, left=0.04)
    return save(figure, path)


def _colored(rows: Mapping[str, Sequence[Tally | None]]) -> list[str]:
    """For every eviction: its dense form, and its best packed one by the mean over the shares."""

    def mean(name: str) -> float:
        return sum(tally.accuracy for tally in rows[name] if tally)

    chosen = []
    for eviction in dict.fromkeys(name.split("+")[0] for name in rows):
        chosen += [eviction, max((n for n in rows if n.startswith(f"{eviction}+")), key=mean)]
    return chosen


def _label(axes: Axes, below: str, beside: str) -> None:
    light_grid(axes)
    axes.set_xlabel(below, fontsize=9, color=INK)
    axes.set_ylabel(beside, fontsize=9, color=INK)
