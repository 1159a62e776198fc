"""Costs: times of methods on slices, machine by machine, beside what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from winnow.report.page.methods import MethodName
from winnow.report.page.results import Holding, examples_there, holding
from winnow.report.page.sections import Origin
from winnow.report.page.slices import Slice, Slices


@dataclass(frozen=True)
class Cost:
    """Medians over the examples of a slice that ran on one machine."""

    slice: Slice
    method: MethodName
    machine: int
    examples: int
    most: int
    """Examples that some method was, or is to be, asked, wherever it ran."""
    prompt_tokens: float
    prefill_seconds: float
    compress_seconds: float
    token_milliseconds: float | None
    """Milliseconds per decoded token; None where nothing was decoded, or several methods side by side."""
    holding: Holding
    runs: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """False where there are more."""
        return self.examples == self.most


def costs_of(slices: Slices, methods: Sequence[MethodName], wanted: Slice) -> Iterator[Cost]:
    """The costs of methods that were asked all tasks of a slice on one machine."""
    asked = [[slices.rows(method.text, task, wanted.length) for task in wanted.tasks] for method in methods]
    most = examples_there(slices, wanted.tasks, wanted.length, asked)
    for method, groups in zip(methods, asked, strict=True):
        for machine in sorted({origin.machine for group in groups for origin in group}):
            here = [[origin for origin in group if origin.machine == machine] for group in groups]
            if all(here):
                yield _cost(wanted, method, machine, here, most)


def _cost(wanted: Slice, method: MethodName, machine: int, groups: Sequence[Sequence[Origin]], most: int) -> Cost:
    origins = [origin for group in groups for origin in group]
    rows = [origin.row for origin in origins]
    paces = [1000 * row.decode_seconds / row.decode_steps for row in rows if row.decode_steps and row.together == 1]
    return Cost(
        wanted,
        method,
        machine,
        len(rows),
        most,
        median(row.prompt_tokens for row in rows),
        median(row.prefill_seconds for row in rows),
        median(row.compress_seconds for row in rows),
        median(paces) if paces else None,
        holding(groups),
        tuple(sorted({origin.source.number for origin in origins})),
    )
