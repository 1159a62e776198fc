"""Progress as plain lines, for standard error that is a file, a pipe or the log of a batch system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread

from winnow.commands.console import messages
from winnow.commands.pace import Clock

FIRST, EVERY = 20.0, 60.0
"""Seconds until the first line, and between lines. Work that ends before the first says nothing at all."""
_LOOK = 1.0


class ProgressLines:
    """Says from time to time how far a piece of work is."""

    def __init__(self, told: Callable[[], str], clock: Clock) -> None:
        """told: a line without its end."""
        self._told = told
        self._clock = clock
        self._due = clock() + FIRST
        self._said = False
        self._lock = Lock()

    def tick(self) -> None:
        """Prints a line where one is due."""
        with self._lock:
            now = self._clock()
            if now >= self._due:
                self._due = now + EVERY
                self._said = True
                self._print(self._told())

    def end(self, text: str) -> None:
        """Prints a last line, for work that was long enough to have others."""
        if self._said:
            self._print(text)

    @contextmanager
    def ticking(self, look: float = _LOOK) -> Iterator[None]:
        """Inside, lines come in time even where nothing advances; look: seconds between two looks at the clock."""
        ended = Event()

        def watch() -> None:
            while not ended.wait(look):
                self.tick()

        thread = Thread(target=watch, name="winnow progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _print(self, text: str) -> None:
        messages().print(text, markup=False, soft_wrap=True)
