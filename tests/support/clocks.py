"""A clock that a test sets."""

from __future__ import annotations


class SetClock:
    """Seconds that go on only where a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        """So many seconds pass."""
        self.seconds += seconds
