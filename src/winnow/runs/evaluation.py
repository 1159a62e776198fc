"""From groups, methods and an executor to rows in a journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from winnow.estimate.executors.base import Executor, Item
from winnow.estimate.journal import Journal
from winnow.runs.cells import content_hash
from winnow.runs.folder import CELLS, RunError
from winnow.runs.groups import Group
from winnow.runs.record import RowRecords
from winnow.runs.rows import Row
from winnow.runs.worker import RunRecipe
from winnow.tasks.example import LIKELIHOODS

HANDFUL = 5
"""Examples of a task that the full cache may fail before something must be wrong."""
_LONG = 10 * HANDFUL
"""Examples of a task from which on the full cache answers a handful before any other method: their contexts are read
twice, which is a small part of such a task, and a mistake is found before all methods have made it."""

Watch = Callable[[Sequence[Row], float], None]
"""Called with the rows of an item and its part of all work, after they are journaled."""


class Evaluation:
    """A run's cells, of which a shard's are to be evaluated: those that have a row, and those that are missing."""

    def __init__(
        self,
        recipe: RunRecipe,
        journal: Journal,
        together: int = 1,
        elsewhere: Iterable[Row] = (),
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        """together: methods whose answers are decoded side by side, at most; elsewhere: rows of other journals; shard:
        (i, n) for every n-th context, i from 0.

        Raises JournalError, naming the line, for a record that is no row, or that contradicts another; RunError for a
        row about other texts than an example of its name has, for one of another cell than its example has under its
        method now, and for a shard of which no context is.
        """
        self._journal = journal
        self._known = {row.cell: row for row in (*elsewhere, *journal.read(RowRecords()))}
        _check_texts(self._known.values(), recipe.groups, journal.path)
        self._cells = [recipe.space.cells(group, recipe.methods) for group in recipe.groups]
        self._check_cells(recipe)
        self._mine = _groups_of(shard, recipe.groups)
        self.groups = [recipe.groups[each] for each in self._mine]
        """Those of the shard."""
        self.cells = [cell for each in self._mine for cells in self._cells[each] for cell in cells]
        """Those of the shard."""
        self.recipe = replace(recipe, batches=self._batches(len(recipe.methods), together))
        """The work, with methods in batches."""

    @property
    def done(self) -> int:
        """Cells of the shard that have a row."""
        return sum(cell in self._known for cell in self.cells)

    @property
    def rows(self) -> list[Row]:
        """The rows of the whole run, in the order of its cells."""
        cells = (cell for group in self._cells for cells in group for cell in cells)
        return [self._known[cell] for cell in cells if cell in self._known]

    @property
    def planned(self) -> dict[str, dict[str, int]]:
        """Examples of every task under every method of this command: its own of all shards, and those of rows."""
        cells: dict[tuple[str, str], set[str]] = {}
        methods = list(map(str, self.recipe.methods))
        for group, of_group in zip(self.recipe.groups, self._cells, strict=True):
            for method, of_method in zip(methods, of_group, strict=True):
                cells.setdefault((method, group.task), set()).update(of_method)
        for row in self._known.values():
            if (row.method, row.task) in cells:
                cells[row.method, row.task].add(row.cell)
        found: dict[str, dict[str, int]] = {method: {} for method in methods}
        for (method, task), planned in cells.items():
            found[method][task] = len(planned)
        return found

    def missing(self) -> list[Item]:
        """Items of the shard with a cell that has no row."""
        items = [Item(batch, group) for group in self._mine for batch in range(len(self.recipe.batches))]
        return self._handful_first(
            [item for item in items if any(self._lacks(item.example, method) for method in self.recipe.places(item))]
        )

    def results(self, item: Item) -> int:
        """Cells that an item gives."""
        return len(self.recipe.groups[item.example].examples) * len(self.recipe.places(item))

    def work(self, item: Item) -> float:
        """A measure of an item's time, by what is read for it."""
        return self.recipe.groups[item.example].work * len(self.recipe.places(item)) / len(self.recipe.methods)

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
            if not allow_zero and any(row.method == "full" for row in done.values):
                self._check_not_zero(self.recipe.groups[done.item.example])

    @property
    def zeros(self) -> list[str]:
        """Tasks in which the full cache scores 0 in every example that it was asked."""
        judged = {group.task: group.judging.metric for group in self.recipe.groups}
        best: dict[str, float] = {}
        for row in self.rows:
            if row.method == "full" and judged[row.task] not in LIKELIHOODS:
                best[row.task] = max(best.get(row.task, 0.0), row.scores[row.measure])
        return [task for task, score in best.items() if score == 0]

    def _handful_first(self, items: Sequence[Item]) -> list[Item]:
        """Items, with the full cache on the first examples of every long task before all others."""
        groups, methods = self.recipe.groups, self.recipe.methods
        long = Counter(group.task for group in groups for _ in group.examples)
        asked: Counter[str] = Counter()
        first: dict[Item, None] = {}
        for item in items:
            task, places = groups[item.example].task, self.recipe.places(item)
            with_full = any(str(methods[place]) == "full" for place in places)
            if with_full and len(places) < len(methods) and long[task] >= _LONG and asked[task] < HANDFUL:
                asked[task] += len(groups[item.example].examples)
                first[item] = None
        return [*first, *(item for item in items if item not in first)]

    def _batches(self, methods: int, together: int) -> tuple[tuple[int, ...], ...]:
        """Places of the methods that lack a cell, side by side: those with all of them would be evaluated again."""
        lacking = [place for place in range(methods) if any(self._lacks(group, place) for group in self._mine)]
        return tuple(tuple(lacking[first : first + together]) for first in range(0, len(lacking), together))

    def _lacks(self, group: int, method: int) -> bool:
        """True if a cell of a group under a method has no row."""
        return any(cell not in self._known for cell in self._cells[group][method])

    def _check_cells(self, recipe: RunRecipe) -> None:
        """Raises RunError for rows of other cells than their examples have under their methods now: beside new ones
        nothing would tell which are right.
        """
        planned = {
            (group.task, example.name, method): cell
            for group, of_group in zip(recipe.groups, self._cells, strict=True)
            for method, cells in zip(map(str, recipe.methods), of_group, strict=True)
            for example, cell in zip(group.examples, cells, strict=True)
        }
        rows = self._known.values()
        others = sorted(
            {row.method for row in rows if planned.get((row.task, row.example, row.method), row.cell) != row.cell}
        )
        if others:
            more = f" and of {len(others) - 1} more methods" if len(others) > 1 else ""
            folder = self._journal.path.parent
            raise RunError(
                f"{folder} holds results of {others[0]}{more} with other code, another table or another metric: give "
                f"another --out, or delete those lines in {folder / CELLS}."
            )

    def _check_not_zero(self, group: Group) -> None:
        if group.judging.metric in LIKELIHOODS:
            return
        of_full = (row for row in self._known.values() if row.task == group.task and row.method == "full")
        rows = [row for row in of_full if group.judging.metric in row.scores]
        if len(rows) < HANDFUL or any(row.scores[group.judging.metric] for row in rows):
            return
        row = rows[-1]
        raise RunError(
            f"The full cache scores 0 in the first {len(rows)} examples of {group.task} ({group.judging.metric}), so "
            f"methods cannot be told apart. It said {_short(row.prediction)} where {_short(row.answers[0])} was right. "
            "Check the protocol (chat template or none?), the model and the metric, or continue with --allow-zero."
        )


def _groups_of(shard: tuple[int, int], groups: Sequence[Group]) -> list[int]:
    """Places of the groups of every n-th context. Raises RunError where no context is of the shard."""
    index, count = shard
    places = _places(groups)
    mine = [group for group, place in enumerate(places) if place % count == index]
    if not mine:
        raise RunError(f"There is no context for shard {index + 1}/{count}: {max(places) + 1} shards have one here.")
    return mine


def _places(groups: Sequence[Group]) -> list[int]:
    """The place of every group's context, however many examples are in a group: in its task, from the task's on."""
    tasks: dict[str, dict[str, int]] = {}
    begins: dict[str, int] = {}
    for group in groups:
        begins.setdefault(group.task, len(begins))
        contexts = tasks.setdefault(group.task, {})
        contexts.setdefault(group.examples[0].context, len(contexts))
    return [begins[group.task] + tasks[group.task][group.examples[0].context] for group in groups]


def _check_texts(rows: Iterable[Row], groups: Iterable[Group], journal: Path) -> None:
    """Raises RunError for a row about other texts than an example of its name: two sets of data would be one run."""
    examples = {(group.task, each.name): each for group in groups for each in group.examples}
    # Rows of an example under all methods say the same; hashes of long texts take a while.
    for task, name, content in sorted({(row.task, row.example, row.content) for row in rows}):
        example = examples.get((task, name))
        if example is not None and content_hash(example) != content:
            raise RunError(
                f"{journal.parent} holds results of other texts, in which example {name} of {task} was a different "
                "one: give another folder, or the same texts and lengths as before."
            )


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= 60 else f"{flat[:57]}...")
