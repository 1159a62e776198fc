"""A table of head scores as colored cells, for terminals that have colors."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from torch import Tensor

from winnow.heads import HeadScores
from winnow.report.shades import scale_of
from winnow.report.textmap import LABEL, label, squeezed

# A table this small has a character cell of its own per score; a larger one has two layers in a line.
_ROWS, _COLUMNS = 40, 32
# From dark to bright, readable on black and on white; and from minus over zero to plus.
_HEAT = ((43, 30, 90), (52, 98, 150), (45, 150, 140), (120, 200, 90), (253, 231, 60))
_SIGNED = ((200, 70, 50), (235, 160, 130), (235, 235, 235), (130, 175, 220), (35, 90, 165))


def colored_map(table: HeadScores, width: int) -> Iterable[Text]:
    """One cell per score. Half blocks put two layers into a line, with the lower one as the background."""
    scale = scale_of([table])
    layers, count = table.shape
    wide = 2 if count <= _COLUMNS else 1
    levels = squeezed(scale.levels(table.values), (width - LABEL) // wide)
    step = 1 if layers <= _ROWS and wide == 2 else 2
    for layer in range(0, layers, step):
        line = Text.assemble((label(layer), "dim"))
        for head in range(levels.shape[1]):
            upper = _color(levels[layer, head], scale.signed)
            if step == 1:
                line.append(" " * wide, style=f"on {upper}")
            elif layer + 1 < layers:
                line.append("▀" * wide, style=f"{upper} on {_color(levels[layer + 1, head], scale.signed)}")
            else:
                line.append("▀" * wide, style=f"{upper}")
        yield line


def _color(level: Tensor, signed: bool) -> str:
    """The level's color, between two of the palette."""
    palette = _SIGNED if signed else _HEAT
    place = level.item() * (len(palette) - 1)
    below = min(int(place), len(palette) - 2)
    mixed = (a + (b - a) * (place - below) for a, b in zip(palette[below], palette[below + 1], strict=True))
    return f"rgb({','.join(str(round(part)) for part in mixed)})"
