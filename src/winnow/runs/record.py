"""Rows as records of a journal."""

from __future__ import annotations

from collections.abc import Iterator

from winnow.estimate.records import Record
from winnow.runs.rows import Row
from winnow.typed import read_as


class RowRecords:
    """Rows of a run: what was said and what it is worth is the same whenever a cell is evaluated; times are not."""

    def read(self, record: Record) -> Row:
        """The row, checked. Raises TypedError."""
        return read_as(Row, record)

    def results(self, record: Record) -> Iterator[tuple[str, object]]:
        """The cell, in words, with what is told of it."""
        row = self.read(record)
        yield f"{row.task}, example {row.example}, {row.method} (cell {row.cell})", [row.scores, row.prediction]
