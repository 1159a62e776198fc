"""Head maps: the share of the prompt that every KV head keeps under a method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from winnow.report.page.methods import FULL, MethodName
from winnow.report.page.sections import Section
from winnow.runs.rows import Row, rows_by

_MOST_HEADS = 4096
"""Heads of a model up to which a table has a cell for each."""


class KeptHeadMap(NamedTuple):
    """Shares of the prompt, mean over all examples."""

    method: MethodName
    shares: tuple[tuple[float, ...], ...]
    """A row for every compressed layer, from 0 to 1 for every KV head."""
    examples: int


def headmaps_of(section: Section, methods: Sequence[MethodName]) -> Iterator[KeptHeadMap]:
    """Those of methods that leave tokens out, where rows noted what heads keep."""
    noted = (origin.row for origin in section.cells.values() if origin.row.kept)
    by_method = rows_by(noted, lambda row: row.method)
    for method in methods:
        rows = by_method.get(method.text, [])
        if method.base.partition("+")[0] != FULL and _are_alike(rows):
            yield KeptHeadMap(method, _shares(rows), len(rows))


def _are_alike(rows: Sequence[Row]) -> bool:
    """True if there are rows, and all have the same heads, as many in every layer, of which a table can have all."""
    shapes = {tuple(len(layer) for layer in row.kept) for row in rows}
    return len(shapes) == 1 and all(len(set(shape)) == 1 and sum(shape) <= _MOST_HEADS for shape in shapes)


def _shares(rows: Iterable[Row]) -> tuple[tuple[float, ...], ...]:
    shares = np.mean([np.array(row.kept) / max(1, row.prompt_tokens) for row in rows], axis=0)
    return tuple(tuple(map(float, layer)) for layer in shares)
