"""Results: means of methods on slices with their intervals, beside the sizes of caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from winnow.report.page.methods import MethodName
from winnow.report.page.quantities import quantity, values_of
from winnow.report.page.sections import Origin, Section
from winnow.report.page.slices import Slice, Slices
from winnow.runs.intervals import Bootstrap, Clusters, Estimate, mean_interval
from winnow.runs.measures import by_definition
from winnow.runs.rows import Row, shared_contexts

BOOTSTRAP = Bootstrap(resamples=2000)
Values = dict[str, float]


@dataclass(frozen=True)
class Holding:
    """Sizes of a method's caches on a slice: means over examples, then over tasks."""

    held_bytes: float
    share: float
    """Bytes held, of those of the full cache."""
    slots: float


@dataclass(frozen=True)
class Result:
    """A quantity of a method on a slice."""

    slice: Slice
    method: MethodName
    quantity: str
    estimate: Estimate
    examples: int
    most: int
    """Examples that some method was asked, or is to be asked by a run that is not finished."""
    holding: Holding
    runs: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """False where there are more."""
        return self.examples == self.most


class RowValues:
    """The values of all rows by quantity."""

    def __init__(self, section: Section) -> None:
        measures = section.measures
        self._values = {
            place: values_of(origin.row, measures.get(origin.row.task)) for place, origin in section.cells.items()
        }
        self.names = list(dict.fromkeys(name for values in self._values.values() for name in values))
        self.quantities = {name: quantity(name) for name in self.names}
        self.by_task: dict[str, set[str]] = {}
        """Quantities of every task."""
        for (task, _, _), values in self._values.items():
            self.by_task.setdefault(task, set()).update(values)

    def of(self, row: Row) -> Values:
        """The values of a row."""
        return self._values[row.task, row.example, row.method]

    def estimate(self, name: str, groups: Sequence[Sequence[Origin]]) -> Estimate:
        """The mean over groups of their means."""
        measured = self.quantities[name]
        rows = [[origin.row for origin in group] for group in groups]
        clusters = [Clusters.of([self.of(row)[name] for row in group], shared_contexts(group)) for group in rows]
        return measured.shown(mean_interval(clusters, measured.bounds, BOOTSTRAP))


def results_of(slices: Slices, judged: RowValues, methods: Sequence[MethodName], wanted: Slice) -> Iterator[Result]:
    """All results on a slice. A mean over tasks is given only for methods that were asked all of them."""
    for name in judged.names:
        tasks = [task for task in wanted.tasks if name in judged.by_task.get(task, ())]
        if not tasks or (len(wanted.tasks) > 1 and len(tasks) == 1):
            continue
        found = []
        for method in methods:
            groups = [
                [each for each in slices.rows(method.text, task, wanted.length) if name in judged.of(each.row)]
                for task in tasks
            ]
            if all(groups):
                found.append((method, groups))
        most = examples_there(slices, tasks, wanted.length, [groups for _, groups in found])
        for method, groups in found:
            origins = [origin for group in groups for origin in group]
            estimate = judged.estimate(name, groups)
            yield Result(
                wanted,
                method,
                name,
                estimate.without_width() if by_definition(name, method.text) else estimate,
                len(origins),
                most,
                holding(groups),
                tuple(sorted({origin.source.number for origin in origins})),
            )


def examples_there(
    slices: Slices, tasks: Sequence[str], length: int | None, asked: Sequence[Sequence[Sequence[Origin]]]
) -> int:
    """Examples of tasks that some method was, or is to be, asked. asked: rows by method and task."""
    return sum(
        max(slices.planned(task, length), len({each.row.example for groups in asked for each in groups[place]}))
        for place, task in enumerate(tasks)
    )


def holding(groups: Sequence[Sequence[Origin]]) -> Holding:
    """Sizes of caches: means over the groups of their means."""

    def mean(value: Callable[[Row], float]) -> float:
        return fmean(fmean(value(origin.row) for origin in group) for group in groups)

    return Holding(
        mean(lambda row: row.held_bytes),
        mean(lambda row: row.held_bytes / row.full_bytes if row.full_bytes else 0.0),
        mean(lambda row: row.slots),
    )
