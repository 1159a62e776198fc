"""Costs: times of methods on slices, machine by machine, beside what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from winnow.report.page.methods import MethodName
from winnow.report.page.results import Holding, holding
from winnow.report.page.sections import Origin
from winnow.report.page.slices import Slice, Slices


@dataclass(frozen=True)
class Cost:
    """Medians over the examples of a slice that ran on one machine."""

    slice: Slice
    method: MethodName
    machine: int
    examples: int
    prompt_tokens: float
    prefill_seconds: float
    compress_seconds: float
    token_milliseconds: float | None
    """Milliseconds per decoded token; None where nothing was decoded, or several methods side by side."""
    holding: Holding
    runs: tuple[int, ...]


def costs_of(slices: Slices, methods: Sequence[MethodName], wanted: Slice) -> Iterator[Cost]:
    """The costs of methods that were asked all tasks of a slice on one machine."""
    for method in methods:
        groups = [slices.rows(method.text, task, wanted.length) for task in wanted.tasks]
        for machine in sorted({origin.machine for group in groups for origin in group}):
            here = [[origin for origin in group if origin.machine == machine] for group in groups]
            if all(here):
                yield _cost(wanted, method, machine, here)


def _cost(wanted: Slice, method: MethodName, machine: int, groups: Sequence[Sequence[Origin]]) -> Cost:
    origins = [origin for group in groups for origin in group]
    rows = [origin.row for origin in origins]
    paces = [1000 * row.decode_seconds / row.decode_steps for row in rows if row.decode_steps and row.together == 1]
    return Cost(
        wanted,
        method,
        machine,
        len(rows),
        median(row.prompt_tokens for row in rows),
        median(row.prefill_seconds for row in rows),
        median(row.compress_seconds for row in rows),
        median(paces) if paces else None,
        holding(groups),
        tuple(sorted({origin.source.number for origin in origins})),
    )
