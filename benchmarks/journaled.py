"""Work on documents under methods, journaled piece by piece, so that a stopped study goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from winnow import Method
from winnow.commands.console import messages
from winnow.estimate.journal import Journal, Record

Work = Callable[[int, Sequence[Method]], Iterator[Record]]
"""A document's seed and the methods that are missing -> one record per method, with its text as "method"."""


def over_documents(
    journal: Journal, task: str, title: str, seeds: Sequence[int], methods: Iterable[Method], work: Work
) -> dict[str, list[Record]]:
    """The records of every document, by the method's text; what the journal holds of this task is not done again."""
    wanted = {str(method): method for method in methods}
    known = {(r["seed"], r["method"]): r for r in journal.records() if r.get("task") == task}
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages()) as progress:
        bar = progress.add_task("", total=len(seeds))
        for seed in seeds:
            missing = [method for text, method in wanted.items() if (seed, text) not in known]
            for found in work(seed, missing) if missing else ():
                record = {"task": task, "seed": seed, **found}
                journal.append(record)
                known[seed, record["method"]] = record
            progress.advance(bar)
    return {text: [known[seed, text] for seed in seeds] for text in wanted}
