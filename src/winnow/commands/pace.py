"""The pace of a piece of work, in words: what is done, of how much, and the time that the rest will take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]
"""Seconds of a clock that never goes back."""


@dataclass
class Pace:
    """Steps done and to be done, by a clock.

    Steps may differ in the work that they are, as prompts of different lengths do. The time left goes by work, and by
    what was done since the beginning alone: a journal's steps took no time. Where workers have to start first, it goes
    by what was done since the first of them finished a step.
    """

    clock: Clock
    total: float | None = None
    """Steps in all; None where nobody knows."""
    unit: str = ""
    """The name of a step, where steps a second mean something ("tokens")."""
    work: float | None = None
    """The work of all steps; as many as there are steps, where each is as much as any other."""
    done: float = 0.0
    starting: int = 0
    """Workers that load what they need before their first step."""
    _finished: int = 0
    """Times that something was done."""
    _work_done: float = 0.0
    _work_skipped: float = 0.0
    _skipped: float = 0.0
    _begin: float = field(init=False)
    _measured_from: float = field(init=False)
    _latest: float = field(init=False)

    def __post_init__(self) -> None:
        self._begin = self._measured_from = self._latest = self.clock()

    def advance(self, steps: float = 1, work: float | None = None) -> None:
        """So many steps more are done; work: what they are of all of it, where steps differ."""
        self._count(steps, work)
        self._finished += 1
        if self.starting and self._finished == 1:
            self._measured_from, self._skipped, self._work_skipped = self._latest, self.done, self._work_done

    def skip(self, steps: float, work: float | None = None) -> None:
        """So many steps more need not be done."""
        self._count(steps, work)
        self._skipped += steps
        self._work_skipped += steps if work is None else work

    def _count(self, steps: float, work: float | None) -> None:
        self.done += steps
        self._work_done += steps if work is None else work
        self._latest = self.clock()

    def set(self, done: float, total: float) -> None:
        """So many steps of so many are done."""
        self.total = total
        self.advance(done - self.done)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self.clock() - self._begin

    @property
    def left(self) -> float | None:
        """Seconds until the end, or None while nothing tells."""
        work = self.total if self.work is None else self.work
        measured = self._work_done - self._work_skipped
        if work is None or measured <= 0 or not self._steady:
            return None
        expected = (self._latest - self._measured_from) * (work - self._work_done) / measured
        return max(0.0, expected - (self.clock() - self._latest))

    @property
    def speed(self) -> float | None:
        """Steps a second, or None while nothing tells."""
        seconds, steps = self._latest - self._measured_from, self.done - self._skipped
        return steps / seconds if seconds > 0 and steps > 0 and self._steady else None

    @property
    def _steady(self) -> bool:
        """True once as many steps are measured as there are workers: each has done one, in the time of one."""
        return self._finished > self.starting

    def counted(self) -> str:
        """The steps that are done: "12 of 40", "1,024 of 4,096 tokens, 350 a second"; "" for nothing of no total."""
        if self.total is None:
            return f"{self.done:,.0f} {self.unit}".rstrip() if self.done else ""
        count = f"{self.done:,.0f} of {self.total:,.0f} {self.unit}".rstrip()
        speed = self.speed if self.unit else None
        return count if speed is None else f"{count}, {speed:,.{0 if speed >= 10 else 1}f} a second"

    def told(self) -> str:
        """The same with the time that it took, and what is left."""
        left = self.left
        parts = [self.counted(), f"{clock_time(self.elapsed)} so far"]
        if left is not None and self.total is not None and self.done < self.total:
            parts.append(f"about {clock_time(left)} left")
        return ", ".join(part for part in parts if part)


def clock_time(seconds: float) -> str:
    """75 -> "1:15", 3675 -> "1:01:15"."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
