"""From groups, methods and an executor to rows in a journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from winnow.estimate.executors.base import Executor, Item
from winnow.estimate.journal import Journal
from winnow.runs.folder import RunError
from winnow.runs.record import RowRecords
from winnow.runs.rows import Row
from winnow.runs.worker import RunRecipe
from winnow.tasks.example import LIKELIHOODS

HANDFUL = 5
"""Examples of a task that the full cache may fail before something must be wrong."""

Watch = Callable[[Sequence[Row], float], None]
"""Called with the rows of an item and its part of all work, after they are journaled."""


class Evaluation:
    """A run's cells: those that the journal has, and those that are missing."""

    def __init__(self, recipe: RunRecipe, journal: Journal) -> None:
        """Raises JournalError, naming the line, for a record that is no row, or that contradicts another."""
        self._recipe = recipe
        self._journal = journal
        self._known = {row.cell: row for row in journal.read(RowRecords())}
        self._cells = {
            Item(number, place): cells
            for place, group in enumerate(recipe.groups)
            for number, cells in enumerate(recipe.space.cells(group, recipe.methods))
        }
        self.cells = [cell for cells in self._cells.values() for cell in cells]
        """All of them."""

    @property
    def done(self) -> int:
        """Cells of this run that have a row."""
        return sum(cell in self._known for cell in self.cells)

    @property
    def rows(self) -> list[Row]:
        """The rows of this run, in the order of its cells."""
        return [self._known[cell] for cell in self.cells if cell in self._known]

    def missing(self, shard: tuple[int, int] = (0, 1)) -> list[Item]:
        """Items with a cell that has no row, for shard (i, n) of every n-th group, i from 0."""
        index, count = shard
        mine = range(index, len(self._recipe.groups), count)
        items = [Item(method, group) for group in mine for method in range(len(self._recipe.methods))]
        return [item for item in items if not all(cell in self._known for cell in self._cells[item])]

    def work(self, item: Item) -> float:
        """A measure of an item's time, by what is read for it."""
        return self._recipe.groups[item.example].work / len(self._recipe.methods)

    def run(self, executor: Executor[list[Row]], items: Sequence[Item], watch: Watch, allow_zero: bool = False) -> None:
        """Evaluates items and journals their rows.

        allow_zero: go on where the full cache fails. Raises RunError where it fails the first `HANDFUL` examples of a
        task, with what was said and what was expected.
        """
        for done in executor.run(items):
            for row in done.values:
                if row.cell not in self._known:
                    self._journal.append(asdict(row))
                    self._known[row.cell] = row
            watch(done.values, self.work(done.item))
            if not allow_zero and self._recipe.methods[done.item.batch].full:
                self._check_not_zero(done.item)

    def _check_not_zero(self, item: Item) -> None:
        group = self._recipe.groups[item.example]
        if group.judging.metric in LIKELIHOODS:
            return
        of_full = (row for row in self._known.values() if row.task == group.task and row.method == "full")
        rows = [row for row in of_full if group.judging.metric in row.scores]
        if len(rows) < HANDFUL or any(row.scores[group.judging.metric] for row in rows):
            return
        row = rows[-1]
        raise RunError(
            f"The full cache scores 0 in the first {len(rows)} examples of {group.task} ({group.judging.metric}): no "
            f"method can be told from another. It said {_short(row.prediction)} where {_short(row.answers[0])} was "
            "right. Look at the protocol (a chat template or none?), the model and the metric; --allow-zero goes on."
        )


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= 60 else f"{flat[:57]}...")
