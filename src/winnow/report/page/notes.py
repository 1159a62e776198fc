"""Notes: things that a reader of a section's numbers must know before comparing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from winnow.report.page.methods import FULL, MethodName
from winnow.report.page.predictions import Predictions
from winnow.report.page.results import Result
from winnow.report.page.sections import Section
from winnow.runs.folder import unfinished


def notes_of(
    section: Section, methods: Sequence[MethodName], results: Sequence[Result], predictions: Sequence[Predictions]
) -> list[str]:
    """Sentences, the weightiest first."""
    return [
        *_of_unfinished_runs(section),
        *_of_unequal_examples(section, results),
        *_of_the_full_cache(methods),
        *_of_truncation(section),
        *_of_single_contexts(section),
        *_of_machines(section),
        *_of_predictions(predictions),
    ]


def _of_unfinished_runs(section: Section) -> Iterator[str]:
    if section.missing:
        paths = [source.path for source in section.sources if not source.finished]
        yield unfinished(paths, section.missing, len(section.cells))


def _of_unequal_examples(section: Section, results: Sequence[Result]) -> Iterator[str]:
    fewer = {result.method.text for result in results if not result.whole}
    tasks: dict[str, set[str]] = {}
    for task, _, method in section.cells:
        tasks.setdefault(method, set()).add(task)
    every = set().union(*tasks.values())
    some = {method for method, found in tasks.items() if found != every}
    if some:
        yield f"{_listed(some)} lack whole tasks, and so have no mean over all."
    if fewer:
        yield (
            f"{_listed(fewer)} have results for fewer examples than there are on some task; such rows say so, and "
            "their points are hollow. winnow compare sets methods side by side on examples that both were asked."
        )


def _of_the_full_cache(methods: Sequence[MethodName]) -> Iterator[str]:
    if all(method.text != FULL for method in methods):
        yield "The full cache was not asked, so nothing says how many of these examples the model gets right at all."


def _of_truncation(section: Section) -> Iterator[str]:
    cut = {(task, example): origin.row.truncated for (task, example, _), origin in section.cells.items()}
    if count := sum(cut.values()):
        yield f"{count:,} of {len(cut):,} prompts were too long and lost their middle."


def _of_single_contexts(section: Section) -> Iterator[str]:
    contexts: dict[str, set[str]] = {}
    examples: dict[str, set[str]] = {}
    for (task, example, _), origin in section.cells.items():
        contexts.setdefault(task, set()).add(origin.row.context)
        examples.setdefault(task, set()).add(example)
    single = {task for task, found in contexts.items() if len(found) == 1 and len(examples[task]) > 1}
    if single:
        yield f"All questions of {_listed(single)} are about one context: their intervals tell of it alone."


def _of_machines(section: Section) -> Iterator[str]:
    if (count := len(section.environments)) > 1:
        yield f"Results are from {count} environments; times are told apart by them."


def _of_predictions(predictions: Sequence[Predictions]) -> Iterator[str]:
    for each in predictions:
        if len(each.examples) < each.most:
            yield (
                f"Predictions for {each.task} are those of {len(each.examples):,} of its {each.most:,} examples, "
                "evenly taken; the runs' folders have all."
            )


def _listed(names: set[str], most: int = 3) -> str:
    first = sorted(names)[:most]
    return ", ".join(first) + (f" and {len(names) - most} more" if len(names) > most else "")
