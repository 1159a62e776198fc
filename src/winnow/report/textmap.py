"""A table as lines of text: rows are layers, columns are heads."""

from __future__ import annotations

import torch
from torch import Tensor

from winnow.heads.scores import HeadScores
from winnow.report.shades import scale_of

SHADES = " .:-=+*#%@"


def text_map(table: HeadScores, width: int = 120) -> list[str]:
    """One line per layer, one character per head, from " " (lowest) to "@" (highest).

    Where there are more heads than columns, a character is the highest of several.
    """
    levels = squeezed(scale_of([table]).levels(table.values), width - LABEL)
    shades = (levels * len(SHADES)).long().clamp(max=len(SHADES) - 1)
    rows = ("".join(SHADES[shade] for shade in row) for row in shades.tolist())
    return [label(layer) + row.rstrip() for layer, row in enumerate(rows)]


LABEL = 5
"""Characters before the first head."""


def label(layer: int) -> str:
    """The layer's number, right-aligned."""
    return f"{layer:>{LABEL - 2}}  "


def squeezed(levels: Tensor, columns: int) -> Tensor:
    """[L, H] -> [L, at most `columns`], by the highest of neighbors."""
    step = -(-levels.shape[1] // max(1, columns))
    return torch.nn.functional.max_pool1d(levels[None], step, ceil_mode=True)[0]
