"""Work on documents under methods, journaled piece by piece, so that a stopped study goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from winnow import Method
from winnow.commands.console import messages
from winnow.estimate.journal import Journal
from winnow.estimate.records import Record
from winnow.typed import OneOf, read_as, read_fields

Work = Callable[[int, Sequence[Method]], Iterator[Record]]
"""A document's seed and the methods that are missing -> one record per method, with its text as "method"."""


class Measured(NamedTuple):
    """Findings of a task on a document under a method."""

    task: str
    seed: int
    method: str
    found: Record


class Findings(NamedTuple):
    """Results of a task on a document."""

    types: Mapping[str, Any]
    """Types of its fields, as `winnow.typed` reads them."""
    check: Callable[[Record], None] = lambda _: None
    """Raises TypedError for fields that contradict each other."""


class TaskRecords:
    """Records of several tasks in one journal."""

    def __init__(self, tasks: Mapping[str, Findings], seeds: Sequence[int]) -> None:
        """seeds: of all documents."""
        self._tasks = tasks
        self._common: dict[str, Any] = {
            "task": Annotated[str, OneOf(tuple(tasks))],
            "seed": Annotated[int, OneOf(tuple(seeds))],
            "method": str,
        }

    def read(self, record: Record) -> Measured:
        """The record, checked. Raises TypedError."""
        findings = self._tasks[read_as(self._common["task"], record.get("task"), "task")]
        read_fields({**self._common, **findings.types}, record)
        found = {name: value for name, value in record.items() if name not in self._common}
        findings.check(found)
        return Measured(record["task"], record["seed"], record["method"], found)

    def results(self, record: Record) -> Iterator[tuple[str, object]]:
        """The piece of work, in words, with its result."""
        task, seed, method, found = self.read(record)
        yield f"{task}, document {seed}, {method}", found


class DocumentJournal:
    """Findings of several tasks on documents under methods, in a journal."""

    def __init__(self, journal: Journal, tasks: Mapping[str, Findings], seeds: Sequence[int]) -> None:
        """tasks, seeds: as for `TaskRecords`. Raises JournalError, naming the line, for a record that is none."""
        self._journal = journal
        measured = journal.read(TaskRecords(tasks, seeds))
        self._known = {(each.task, each.seed, each.method): each.found for each in measured}

    def over(
        self, task: str, title: str, seeds: Sequence[int], methods: Iterable[Method], work: Work
    ) -> dict[str, list[Record]]:
        """Findings on every document, by the method's text; what the journal holds is not done again."""
        wanted = {str(method): method for method in methods}
        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=messages()) as progress:
            bar = progress.add_task("", total=len(seeds))
            for seed in seeds:
                missing = [method for text, method in wanted.items() if (task, seed, text) not in self._known]
                for record in work(seed, missing) if missing else ():
                    self._journal.append({"task": task, "seed": seed, **record})
                    found = {name: value for name, value in record.items() if name != "method"}
                    self._known[task, seed, record["method"]] = found
                progress.advance(bar)
        return {text: [self._known[task, seed, text] for seed in seeds] for text in wanted}
