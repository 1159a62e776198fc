"""Rows of a run in one line for each method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from winnow.runs.intervals import SHARES, Clusters, Estimate, mean_interval
from winnow.runs.measures import by_definition, measures
from winnow.runs.rows import Row, rows_by, shared_contexts


@dataclass(frozen=True)
class MethodSummary:
    """All examples of some tasks under one method and budget."""

    method: str
    scores: dict[str, Estimate]
    """Means over tasks of their means, by measure; "score" for tasks whose own measures are shares, whichever."""
    by_task: dict[str, float]
    """Means of every task's own measure."""
    examples: int
    held_share: float
    """held_bytes / full_bytes, mean over the examples."""
    held_bytes: float
    slots: float
    compress_seconds: float
    prefill_seconds: float
    step_seconds: float | None
    """Decode time of a token of one sequence in its batch; None where none was decoded, or methods shared a batch."""


def summaries(rows: Iterable[Row]) -> list[MethodSummary]:
    """One for each method, in order of appearance."""
    return [_summary(method, found) for method, found in rows_by(rows, lambda row: row.method).items()]


def _summary(method: str, rows: Sequence[Row]) -> MethodSummary:
    by_task = rows_by(rows, lambda row: row.task)
    alone = all(row.together == 1 for row in rows)
    steps = sum(row.decode_steps for row in rows)
    return MethodSummary(
        method=method,
        scores=_scores(method, list(by_task.values())),
        by_task={task: fmean(row.scores[row.measure] for row in found) for task, found in by_task.items()},
        examples=len(rows),
        held_share=fmean(row.held_bytes / row.full_bytes for row in rows),
        held_bytes=fmean(row.held_bytes for row in rows),
        slots=fmean(row.slots for row in rows),
        compress_seconds=fmean(row.compress_seconds for row in rows),
        prefill_seconds=fmean(row.prefill_seconds for row in rows),
        step_seconds=sum(row.decode_seconds for row in rows) / steps if steps and alone else None,
    )


def _scores(method: str, tasks: Sequence[Sequence[Row]]) -> dict[str, Estimate]:
    """Tasks of one kind together: those with a score, and those of continuations."""
    scored = [task for task in tasks if measures()[task[0].measure].percent]
    found = {"score": _mean([(task, task[0].measure) for task in scored], shares=True)} if scored else {}
    others = [task for task in tasks if task not in scored]
    for name in others[0][0].scores if others else ():
        mean = _mean([(task, name) for task in others], measures()[name].percent)
        found[name] = mean.without_width() if by_definition(name, method) else mean
    return found


def _mean(tasks: Sequence[tuple[Sequence[Row], str]], shares: bool) -> Estimate:
    clusters = [Clusters.of([row.scores[name] for row in rows], shared_contexts(rows)) for rows, name in tasks]
    return mean_interval(clusters, SHARES if shares else None)
