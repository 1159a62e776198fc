"""The full cache of a run beside the row that a paper prints for it: a fingerprint of the way a benchmark was put."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from winnow.runs.intervals import SHARES, Bootstrap, Clusters, Estimate, mean_interval
from winnow.runs.rows import Row, shared_contexts
from winnow.tasks.protocol import Protocol

_FEWEST = 50
"""Examples of a task below which a mean says too little."""
_CHANCE = 0.05
"""Chance that any task of a run of the same model, put in the same way, lies outside."""
_DRAWN_TWICE = math.sqrt(2)
"""Width of an interval where the paper drew examples of its own, as many as the run, of the width for the same ones."""


class Beside(NamedTuple):
    """A task's mean of the full cache, and the printed one, 0 to 100."""

    task: str
    found: Estimate
    printed: float

    @property
    def apart(self) -> bool:
        """True if the printed score lies outside of what chance explains, all tasks together."""
        return not self.found.low <= self.printed <= self.found.high


def published_row(protocol: Protocol, model: str) -> Mapping[str, float] | None:
    """The printed row of a model, by the last part of its name; None where no paper has one."""
    name = _known_as(model.replace("\\", "/").rstrip("/").rpartition("/")[2])
    return next((row for known, row in protocol.full_rows.items() if _known_as(known) == name), None)


def beside_printed(rows: Sequence[Row], printed: Mapping[str, float], generated: bool = False) -> list[Beside]:
    """Every task of which enough was evaluated, in the order of the printed row.

    generated: True where the paper's examples are others of the same kind, and its mean has an error of its own.
    """
    full = {task: [row for row in rows if row.task == task and row.method == "full"] for task in printed}
    judged = {task: found for task, found in full.items() if len(found) >= _FEWEST}
    # Of many intervals of 95 % one misses by chance alone.
    bootstrap = Bootstrap(level=1 - _CHANCE / max(1, len(judged)))
    width = _DRAWN_TWICE if generated else 1.0
    return [Beside(task, _interval(found, bootstrap, width), printed[task]) for task, found in judged.items()]


def _interval(rows: Sequence[Row], bootstrap: Bootstrap, width: float) -> Estimate:
    """The mean of rows, 0 to 100, with its interval made wider."""
    values = [row.scores[row.measure] for row in rows]
    mean, low, high = mean_interval([Clusters.of(values, shared_contexts(rows))], SHARES, bootstrap)
    low, high = max(0.0, mean - width * (mean - low)), min(1.0, mean + width * (high - mean))
    return Estimate(100 * mean, 100 * low, 100 * high)


def _known_as(name: str) -> str:
    """A name as others write it, too: the hub has Llama 3.1 with and without its maker."""
    return name.lower().removeprefix("meta-")
