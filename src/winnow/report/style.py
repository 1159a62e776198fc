"""Style of all pictures: colors that color-blind readers can tell apart, a quiet frame, saving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.errors import WinnowError
from winnow.files import replacing
from winnow.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

# Okabe and Ito's palette, without its yellow, which is too faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))
INK = "#222222"
FAINT = "#888888"
MARK = "#D55E00"
DPI = 160
# Inches: right of a title, and from line to line of it.
_EDGE, _TITLE_LINE, _LINE = 0.1, 0.27, 0.18


class MissingPackage(WinnowError):
    """Pictures need matplotlib, which is an extra."""


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches. Raises MissingPackage without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackage('Pictures need matplotlib: pip install "winnow-kv[plot]"') from None
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def check_drawable() -> None:
    """Raises MissingPackage without matplotlib, before work whose result is to be drawn."""
    new_figure(1, 1)


def without_middle(text: str, longest: int) -> str:
    """A text of so many characters at most: names of methods begin with the method and end with the budget."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[half + 1 - longest :]}"


def short_labels(texts: Sequence[str], longest: int) -> list[str]:
    """Texts without their middles, of so many characters at most, or of as many as tell different ones apart."""
    for most in range(longest, max(map(len, texts), default=0)):
        labels = [without_middle(text, most) for text in texts]
        if len(set(labels)) == len(set(texts)):
            return labels
    return list(texts)


def line_style(index: int) -> dict[str, Any]:
    """Color, marker and dashes of the line with this number; different for the first 21."""
    turn, place = divmod(index, len(COLORS))
    return {"color": COLORS[place], "marker": MARKERS[place], "linestyle": DASHES[turn % len(DASHES)]}


def quiet_frame(axes: Axes) -> None:
    """Only the axes that carry numbers, in gray."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)


def light_grid(axes: Axes) -> None:
    """Horizontal lines behind everything else."""
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def place_axes(figure: Figure, left: float, bottom: float, wide: float, tall: float) -> Axes:
    """Axes at a place given in inches."""
    width, height = figure.get_size_inches()
    return figure.add_axes((left / width, bottom / height, wide / width, tall / height))


def mark_facts(axes: Axes, facts: Sequence[tuple[int, int]], length: int) -> None:
    """Marks tokens [start, stop) in color along an axis of `length` tokens, at least visibly wide."""
    for start, stop in facts:
        axes.axvspan(start, max(stop, start + length / 300), color=MARK, alpha=0.28, linewidth=0)
        axes.plot((start + stop) / 2, 0, marker=7, markersize=6, color=MARK, clip_on=False, zorder=5)


def add_title(figure: Figure, title: str, subtitle: str, left: float) -> None:
    """Title and subtitle above everything else, from `left` (a share of the width) on; the last thing to be drawn.

    What is too long for a line goes on in the next, and the figure grows by that.
    """
    plain: dict[str, Any] = {"va": "top", "parse_math": False}  # as `save` has all texts
    heading = figure.text(left, 1, title, fontsize=14, fontweight="bold", color=INK, **plain)
    under = figure.text(left, 1, subtitle, fontsize=9.5, color="#555555", **plain)
    title_lines, lines = _wrap(figure, heading), _wrap(figure, under)
    _grow(figure, _TITLE_LINE * (title_lines - 1) + _LINE * (lines - 1))
    inch = 1 / figure.get_figheight()
    heading.set_y(1 - 0.2 * inch)
    under.set_y(1 - (0.5 + _TITLE_LINE * (title_lines - 1)) * inch)


def _wrap(figure: Figure, text: Text) -> int:
    """Breaks a text into lines that end before the right edge of the figure; returns how many there are."""
    room = (figure.get_figwidth() - _EDGE) * figure.dpi
    lines: list[str] = []
    for word in text.get_text().split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        text.set_text(longer)
        if lines and text.get_window_extent().x1 <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    text.set_text("\n".join(lines))
    return len(lines)


def _grow(figure: Figure, inches: float) -> None:
    """Makes room at the top; everything that is drawn stays where it is, from the bottom."""
    before = figure.get_figheight()
    share = before / (before + inches)
    figure.set_figheight(before + inches)
    for axes in figure.axes:
        left, bottom, wide, tall = axes.get_position().bounds
        axes.set_position((left, bottom * share, wide, tall * share))
    for text in figure.texts:
        text.set_y(text.get_position()[1] * share)


def save(figure: Figure, path: Path | str) -> Path:
    """Writes a PNG, with folders as needed; returns its path. Raises FileError where it cannot be written."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a dollar of a question is no formula
    with replacing(Path(path)) as file:
        figure.savefig(file, format="png", metadata={"Software": f"winnow {__version__}"})
    return Path(path)
