"""Progress of long work, and what is said where it stops before its end.

On a terminal there are bars and spinners that disappear; elsewhere plain lines, about one a minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from winnow.commands.console import messages
from winnow.commands.pace import Clock, Pace, clock_time
from winnow.commands.progress_lines import ProgressLines
from winnow.estimate.errors import ExecutorError, JournalError

_BAR, _SHORT_BAR, _WIDE = 24, 8, 100
"""Columns of a bar, and of one on terminals that are less than so wide."""


class Bar:
    """The progress of a piece of work, as it is shown."""

    def __init__(self, text: str, pace: Pace) -> None:
        self.text = text
        """Plain text before the bar."""
        self.pace = pace
        self.changed: Callable[[], None] = lambda: None
        """Called after every change, by whoever shows it."""

    def advance(self, steps: float = 1, work: float | None = None) -> None:
        """So many steps more are done; work: what they are of all of it, where steps differ."""
        self.pace.advance(steps, work)
        self.changed()

    def skip(self, steps: float, work: float | None = None) -> None:
        """So many steps more need not be done, as those that a journal has."""
        self.pace.skip(steps, work)
        self.changed()

    def show(self, text: str) -> None:
        """Changes the text before the bar."""
        self.text = text
        self.changed()

    def set(self, done: float, total: float) -> None:
        """So many steps of so many are done."""
        self.pace.set(done, total)
        self.changed()


@contextmanager
def progress_bar(
    text: str,
    total: float | None,
    *,
    unit: str = "",
    work: float | None = None,
    starting: int = 0,
    clock: Clock = time.monotonic,
) -> Iterator[Bar]:
    """A bar that disappears when the work is done.

    total: steps, or None where they are not known yet. unit: the name of a step, where steps a second mean something.
    work: that of all steps, where some take longer than others; `advance` then gets the work of each.
    starting: workers that load what they need before their first step.
    """
    bar = Bar(text, Pace(clock, total, unit, work, starting=starting))
    with _drawn(bar) if _on_terminal() else _written(bar):
        yield bar


@contextmanager
def counted(text: str, total: int, clock: Clock = time.monotonic) -> Iterator[Bar]:
    """Steps for whoever shows them on a terminal, where nothing is drawn; elsewhere lines, as of any long work."""
    bar = Bar(text, Pace(clock, total))
    with nullcontext() if _on_terminal() else _written(bar):
        yield bar


@contextmanager
def stage(text: str, clock: Clock = time.monotonic) -> Iterator[Bar]:
    """A spinner, for work whose steps nobody knows; `show` changes its text."""
    bar = Bar(text, Pace(clock))
    with _spinning(bar) if _on_terminal() else _written(bar):
        yield bar


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


def _on_terminal() -> bool:
    """True where lines can be drawn over. FORCE_COLOR and the like make no terminal of a file."""
    return sys.stderr.isatty() and not messages().is_dumb_terminal


@contextmanager
def _drawn(bar: Bar) -> Iterator[None]:
    console = messages()
    drawn = BarColumn(bar_width=_BAR if console.width >= _WIDE else _SHORT_BAR)
    with Progress(_LabelColumn(), drawn, _PaceColumn(bar.pace), console=console, transient=True) as progress:
        task = progress.add_task(bar.text, total=bar.pace.total)

        def redraw() -> None:
            progress.update(task, description=bar.text, completed=bar.pace.done, total=bar.pace.total)

        bar.changed = redraw
        yield


class _LabelColumn(ProgressColumn):
    """The text before the bar, cut where the line is too long."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class _PaceColumn(ProgressColumn):
    """Steps, and the time that is left; never cut."""

    def __init__(self, pace: Pace) -> None:
        super().__init__(Column(no_wrap=True))
        self._pace = pace

    def render(self, task: Task) -> Text:
        left = self._pace.left
        told = self._pace.counted() if left is None else f"{self._pace.counted()}, {clock_time(left)} left"
        return Text(told, no_wrap=True)


@contextmanager
def _spinning(bar: Bar) -> Iterator[None]:
    with messages().status(escape(bar.text)) as status:
        bar.changed = lambda: status.update(escape(bar.text))
        yield


@contextmanager
def _written(bar: Bar) -> Iterator[None]:
    lines = ProgressLines(lambda: f"{bar.text}: {bar.pace.told()}", bar.pace.clock)
    bar.changed = lines.tick
    with lines.ticking():
        yield
    counted = bar.pace.counted()
    lines.end(f"{bar.text}: {counted}{', ' if counted else ''}ended after {clock_time(bar.pace.elapsed)}")
