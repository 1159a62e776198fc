"""Everything that the page says about a section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from winnow.report.page.costs import Cost, costs_of
from winnow.report.page.headmaps import KeptHeadMap, headmaps_of
from winnow.report.page.heatmaps import Heatmap, heatmaps_of
from winnow.report.page.methods import FULL, MethodName, budget_order, budgets_of, method_name, without_folders
from winnow.report.page.notes import notes_of
from winnow.report.page.predictions import Predictions, predictions_of
from winnow.report.page.quantities import FIDELITY, SCORE, Quantity
from winnow.report.page.results import Holding, Result, RowValues, results_of
from winnow.report.page.sections import Section
from winnow.report.page.slices import Slice, Slices


@dataclass(frozen=True)
class Content:
    """A section and all of its numbers."""

    number: int
    section: Section
    methods: list[MethodName]
    """The full cache first, then the best."""
    slices: list[Slice]
    lengths: list[int]
    quantities: list[Quantity]
    results: list[Result]
    costs: list[Cost]
    heatmaps: list[Heatmap]
    headmaps: list[KeptHeadMap]
    predictions: list[Predictions]
    notes: list[str]

    @property
    def tasks(self) -> list[str]:
        """Names of slices of all lengths."""
        return [each.name for each in self.slices if each.length is None]

    @property
    def bases(self) -> list[str]:
        """Methods without their budgets, in the order of the methods."""
        return list(dict.fromkeys(method.base for method in self.methods))

    @property
    def budgets(self) -> list[str]:
        """From small to large."""
        return budgets_of(self.methods)

    @property
    def main(self) -> list[Quantity]:
        """Quantities of the table of all tasks; further measures are in the long one only."""
        return [each for each in self.quantities if each.name in (SCORE, *FIDELITY)]

    @property
    def asks(self) -> bool:
        """True if there are questions; a task of continuations has none that could be seen."""
        return any(each.name not in FIDELITY for each in self.quantities)

    @property
    def columns(self) -> list[tuple[Slice, Quantity]]:
        """Columns of the table of all tasks."""
        there = {(result.slice, result.quantity) for result in self.results}
        return [
            (part, each)
            for each in self.main
            for part in self.slices
            if part.length is None and (part, each.name) in there
        ]

    @property
    def heatmap_tasks(self) -> list[str]:
        """Tasks that have heatmaps."""
        return list(dict.fromkeys(each.task for each in self.heatmaps))

    def quantity(self, name: str) -> Quantity:
        """The quantity of a name."""
        return next(each for each in self.quantities if each.name == name)

    def holding(self, method: MethodName) -> Holding | None:
        """Sizes of a method on the first slice that it has a result for."""
        return self._holdings.get(method)

    def result(self, method: MethodName, part: Slice, quantity: str) -> Result | None:
        """The result of a method on a slice, if there is one."""
        return self._by_place.get((method, part, quantity))

    @cached_property
    def _holdings(self) -> dict[MethodName, Holding]:
        return {each.method: each.holding for each in reversed(self.results)}

    @cached_property
    def _by_place(self) -> dict[tuple[MethodName, Slice, str], Result]:
        return {(each.method, each.slice, each.quantity): each for each in self.results}


def content_of(section: Section, number: int, done: Callable[[int, int], None] = lambda done, of: None) -> Content:
    """Works out all numbers. done: called with the slices that are finished, and how many there are."""
    names = without_folders(method for _, _, method in section.cells)
    section = section.renamed(names)
    slices, judged = Slices(section), RowValues(section)
    methods = [method_name(text) for text in sorted(set(names.values()))]
    parts = list(slices.all())
    results: list[Result] = []
    costs: list[Cost] = []
    for finished, part in enumerate(parts):
        done(finished, len(parts))
        results += results_of(slices, judged, methods, part)
        costs += costs_of(slices, methods, part)
    methods = _in_order(methods, results, judged)
    place = {method: index for index, method in enumerate(methods)}
    results.sort(key=lambda each: place[each.method])
    costs.sort(key=lambda each: place[each.method])
    predictions = list(predictions_of(slices, judged, methods, section.measures))
    return Content(
        number,
        section,
        methods,
        parts,
        slices.lengths,
        list(judged.quantities.values()),
        results,
        costs,
        list(heatmaps_of(slices, judged, methods)),
        list(headmaps_of(section, methods)),
        predictions,
        notes_of(section, methods, results, predictions),
    )


def _in_order(methods: Sequence[MethodName], results: Sequence[Result], judged: RowValues) -> list[MethodName]:
    """Best mean over budgets first, by the first quantity of the first slice; each method's budgets from small on."""
    if not results:
        return list(methods)
    first = results[0]
    sign = -1 if judged.quantities[first.quantity].higher_is_better else 1
    reached: dict[str, list[float]] = {}
    for each in results:
        if (each.slice, each.quantity) == (first.slice, first.quantity):
            reached.setdefault(each.method.base, []).append(sign * each.estimate.mean)

    def order(method: MethodName) -> tuple[Any, ...]:
        values = reached.get(method.base)
        mean = sum(values) / len(values) if values else float("inf")
        return method.base != FULL, mean, method.base, budget_order(method.budget)

    return sorted(methods, key=order)
