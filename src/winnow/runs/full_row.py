"""The full cache of a run beside the row that a paper prints for it: a fingerprint of the way a benchmark was put."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from winnow.runs.intervals import SHARES, Clusters, Estimate, mean_interval
from winnow.runs.rows import Row, shared_contexts
from winnow.tasks.protocol import Protocol

_FEWEST = 50
"""Examples of a task below which a mean says too little."""


class Beside(NamedTuple):
    """A task's mean of the full cache, and the printed one, 0 to 100."""

    task: str
    found: Estimate
    printed: float

    @property
    def apart(self) -> bool:
        """True if the printed score lies outside of the interval of what was found."""
        return not self.found.low <= self.printed <= self.found.high


def published_row(protocol: Protocol, model: str) -> Mapping[str, float] | None:
    """The printed row of a model, by the last part of its name; None where no paper has one."""
    name = model.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    return next((row for known, row in protocol.full_rows.items() if known.lower() == name), None)


def beside_printed(rows: Sequence[Row], printed: Mapping[str, float]) -> list[Beside]:
    """Every task of which enough was evaluated, in the order of the printed row."""
    found = []
    for task, score in printed.items():
        full = [row for row in rows if row.task == task and row.method == "full"]
        if len(full) >= _FEWEST:
            values = [row.scores[row.measure] for row in full]
            mean = mean_interval([Clusters.of(values, shared_contexts(full))], SHARES)
            found.append(Beside(task, Estimate(*(100 * each for each in mean)), score))
    return found
