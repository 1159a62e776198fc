"""Calls timed as a token's step makes them: each after a read of as much memory as a layer's weights take.

That is what pushes Python's own memory out of the processor's caches between two calls of a token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import torch

from winnow.kernels.native import read_sum

BETWEEN = 16 << 20
"""Bytes that are read between two calls."""
OWN, WINNOWS = "a model's own", "Winnow's"

Call = Callable[[], object]
Seconds = dict[str, float]


def in_turns(contenders: Mapping[str, Sequence[Call]], rounds: int) -> tuple[Seconds, Seconds]:
    """Medians by contender of its calls, each after a read, and of the same once more without one between.

    All calls of a contender are made one after another before the next one's are; a round before the first does not
    count.
    """
    weights = torch.ones(BETWEEN, dtype=torch.uint8)
    first: dict[str, list[float]] = {name: [] for name in contenders}
    again: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, calls in contenders.items():
            for call in calls:
                read_sum(weights)
                spent = _seconds_of(call), _seconds_of(call)
                if number:
                    first[name].append(spent[0])
                    again[name].append(spent[1])
    return _medians(first), _medians(again)


def _seconds_of(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _medians(times: dict[str, list[float]]) -> Seconds:
    return {name: median(taken) for name, taken in times.items()}


def cells(after_a_read: Seconds, again: Seconds) -> list[str]:
    """Those of a table under `HEADS`."""
    found = []
    for seconds in (after_a_read, again):
        own, ours = seconds[OWN], seconds[WINNOWS]
        found += [f"{1e6 * own:,.1f} µs", f"{1e6 * ours:,.1f} µs, {own / ours:.2f}x"]
    return found


HEADS = [f"{whose}, {when}" for when in ("after a read", "again") for whose in (OWN, WINNOWS)]
"""Heads of a table's columns."""
ABOUT = (
    f"each after a read of {BETWEEN >> 20} MB, as a layer's weights are read between two of a token, and once more "
    "without. Above 1x is faster than a model's own."
)
"""The way in which they are timed, in words."""
