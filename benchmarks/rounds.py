"""Contenders that are timed in rounds, one after the other, so that a busy machine slows all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Bench(NamedTuple):
    """Seconds per round of every contender, in the order of the rounds."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Median seconds."""
        return statistics.median(self.seconds[name])

    def medians(self) -> dict[str, float]:
        """Median seconds of all."""
        return {name: self.median(name) for name in self.seconds}

    def ratio(self, over: str, under: str) -> float:
        """Median over the rounds of time(over) / time(under)."""
        pairs = zip(self.seconds[over], self.seconds[under], strict=True)
        return statistics.median(a / b for a, b in pairs)


def measure(
    contenders: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> Bench:
    """Time all contenders once per round, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for done in range(rounds + 1):
        for name, run in contenders.items():
            start = clock()
            run()
            elapsed = clock() - start
            if done:
                seconds[name].append(elapsed)
    return Bench(seconds)
