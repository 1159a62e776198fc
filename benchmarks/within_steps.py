"""Calls timed as a token's step makes them: each after a read of as much memory as a layer's weights take.

That is what pushes Python's own memory out of the processor's caches between two calls of a token.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import torch

from reporting import machine, markdown_table, of_this_processor, write_results
from winnow.kernels.native import read_sum

BETWEEN = 16 << 20
"""Bytes that are read between two calls."""
OWN, WINNOWS = "a model's own", "Winnow's"

Call = Callable[[], object]
Seconds = dict[str, float]


@dataclass(frozen=True)
class Timed:
    """Seconds of a call by whose it is: after a read, and once more without one between."""

    case: dict[str, str]
    """Cells of the table that say what was called, by column."""
    after_a_read: Seconds
    again: Seconds

    def row(self) -> list[str]:
        """A line of the table."""
        found = [*self.case.values()]
        for seconds in (self.after_a_read, self.again):
            own, ours = seconds[OWN], seconds[WINNOWS]
            found += [f"{1e6 * own:,.1f} µs", f"{1e6 * ours:,.1f} µs, {own / ours:.2f}x"]
        return found


def in_turns(case: dict[str, str], own: Sequence[Call], ours: Sequence[Call], rounds: int) -> Timed:
    """Medians of a model's own calls and of Winnow's.

    All calls of one are made one after another before the other's are; a round before the first does not count.
    """
    weights = torch.ones(BETWEEN, dtype=torch.uint8)
    contenders: Mapping[str, Sequence[Call]] = {OWN: own, WINNOWS: ours}
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
    return Timed(case, _medians(first), _medians(again))


def _seconds_of(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _medians(times: dict[str, list[float]]) -> Seconds:
    return {name: median(taken) for name, taken in times.items()}


def publish(name: str, title: str, about: str, found: Sequence[Timed], options: Namespace) -> None:
    """Prints a table and writes its page, which tells what was timed (`about`) and how."""
    timed = [f"{whose}, {when}" for when in ("after a read", "again") for whose in (OWN, WINNOWS)]
    table = markdown_table([*found[0].case, *timed], [each.row() for each in found])
    print(table)
    text = (
        f"# {title}\n\n`python benchmarks/{name}.py`. {machine()} {about}, each after a read of {BETWEEN >> 20} MB, as "
        "a layer's weights are read between two of a token, and once more without. Above 1x is faster than a model's "
        f"own.\n\n{table}\n"
    )
    write_results(options.out, of_this_processor(name), text, [asdict(each) for each in found])
