"""Bars of long work, and what is said where it stops before its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from winnow.commands.console import messages
from winnow.estimate.errors import ExecutorError, JournalError


class Bar:
    """The progress of a piece of work, on a terminal."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, steps: int = 1) -> None:
        """So many steps more are done."""
        self._progress.advance(self._task, steps)

    def show(self, text: str) -> None:
        """Changes the text before the bar."""
        self._progress.update(self._task, description=text)

    def set(self, done: int, total: int) -> None:
        """So many steps of so many are done."""
        self._progress.update(self._task, completed=done, total=total)


@contextmanager
def progress_bar(text: str, total: int | None) -> Iterator[Bar]:
    """A bar that disappears when the work is done; total: steps, or None where they are not known yet."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages(), transient=True) as progress:
        yield Bar(progress, progress.add_task(text, total=total))


def journal_path(out: Path, part: str = "") -> Path:
    """The journal beside a file of results. part: stands between name and ending, for shards."""
    return out.with_name(f"{out.stem}{part}.journal.jsonl")


@contextmanager
def resumable(journal: Path, kept: Callable[[], str]) -> Iterator[None]:
    """Work that a journal keeps. Where it is stopped, or cannot go on, the user is told what is kept.

    kept: the subject of that sentence, as in "12 of 40 runs".
    """
    try:
        yield
    except (KeyboardInterrupt, JournalError, ExecutorError):
        text = f"{kept()} are kept in {journal}; the same command goes on from there."
        messages().print(text, markup=False, soft_wrap=True)
        raise
