"""All runs of a plan, from a model and a journal to a table of head scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from winnow.cache.layer_config import of_full_layers
from winnow.estimate.errors import NeedleError
from winnow.estimate.executors.base import Executor, Item, Worker
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.journal import Journal
from winnow.estimate.needle.capture import full_layers
from winnow.estimate.needle.generate import answer
from winnow.estimate.needle.judging import is_right
from winnow.estimate.needle.plan import Cell, NeedleJob, NeedlePlan, Place
from winnow.estimate.needle.scoring import tally_for
from winnow.estimate.records import REJECTED, NeedleRecord, RecordKind, needle_records
from winnow.heads.scores import HeadScores

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LEAST_PROMPTS, ENOUGH = 6, 1 / 3
"""Prompts, and their share of all, that tell a model which answers none of them."""

NeedleProgress = Callable[[Place, bool], None]
"""Called after every prompt, before its runs are given out, with True for one that the journal had."""


@dataclass(frozen=True)
class Outcome:
    """One run."""

    cell: Cell
    prompt_tokens: int
    text: str
    """The answer, as generated."""
    scores: Tensor | None
    """[L, Hq] float64, or None where the answer is wrong."""

    def record(self, plan: NeedlePlan) -> NeedleRecord:
        """As a line of the journal."""
        scores = REJECTED if self.scores is None else self.scores.tolist()
        return NeedleRecord(str(plan.settings.kind), *self.cell, self.prompt_tokens, self.text, scores)

    @classmethod
    def of(cls, record: NeedleRecord) -> Outcome:
        """The run of a journal's line."""
        scores = None if record.scores == REJECTED else torch.tensor(record.scores, dtype=torch.float64, device="cpu")
        cell = Cell(record.example, record.length, record.depth)
        return cls(cell, record.prompt_tokens, record.answer, scores)


def run_needles(
    model: PreTrainedModel,
    plan: NeedlePlan,
    journal: Journal,
    chunk_size: int | None = None,
    watch: NeedleProgress | None = None,
) -> Iterator[Outcome]:
    """Every run of a model that is loaded, in this process; see `run_places`."""
    executor = LocalExecutor(needle_worker(model, plan, chunk_size))
    return run_places(executor, plan, range(len(plan.places)), known_runs(plan, journal, needle_shape(model)), watch)


class KnownRuns(NamedTuple):
    """Runs of a journal, and the journal for those to come."""

    journal: Journal
    outcomes: dict[Cell, Outcome]


def known_runs(plan: NeedlePlan, journal: Journal, shape: NeedleShape) -> KnownRuns:
    """Runs that a journal has. Raises JournalError, naming the line, for a record that is none, or contradicts one."""
    found = journal.read(_records(plan, shape))
    return KnownRuns(journal, {outcome.cell: outcome for outcome in map(Outcome.of, found)})


def run_places(
    executor: Executor[NeedleRecord],
    plan: NeedlePlan,
    numbers: Sequence[int],
    known: KnownRuns,
    watch: NeedleProgress | None = None,
) -> Iterator[Outcome]:
    """The runs at the places of these numbers: first those known, then those made, in the order in which they are done.

    Every run is written to the journal as soon as it is made. Raises NeedleError for a model that does not show its
    attention.
    """
    found = dict(known.outcomes)
    missing = []
    for number in numbers:
        place = plan.places[number]
        one = next((found[cell] for cell in place.cells if cell in found), None)
        if one is None:
            missing.append(number)
        else:
            outcomes = _kept(plan, place, one, found, known.journal)
            if watch is not None:
                watch(place, True)
            yield from outcomes
    for done in executor.run([Item(0, number) for number in missing]):
        place = plan.places[done.item.example]
        outcomes = _kept(plan, place, Outcome.of(done.values), found, known.journal)
        if watch is not None:
            watch(place, False)
        yield from outcomes


def _kept(plan: NeedlePlan, place: Place, made: Outcome, found: dict[Cell, Outcome], journal: Journal) -> list[Outcome]:
    """The runs that a prompt stands for; those that the journal does not have are written."""
    for cell in place.cells:
        if cell not in found:
            found[cell] = replace(made, cell=cell)
            journal.append(asdict(found[cell].record(plan)))
    return [found[cell] for cell in place.cells]


def needle_worker(model: PreTrainedModel, plan: NeedlePlan, chunk_size: int | None = None) -> Worker[NeedleRecord]:
    """Makes the run at the place whose number an item has for its example, as the first of that place's cells."""

    def run(item: Item) -> NeedleRecord:
        return make_run(model, plan, plan.job(plan.places[item.example]), chunk_size).record(plan)

    return run


def mean_scores(
    plan: NeedlePlan, outcomes: Sequence[Outcome], asked: Mapping[str, str] | None = None, **facts: Any
) -> HeadScores:
    """The mean [L, Hq] over the accepted runs.

    asked: what the plan does not know, for the table's settings. facts: what else is said about it (model, date, ...).

    Raises NeedleError where no run was accepted, with a few of the answers.
    """
    accepted = right_scores(plan, outcomes)
    if not accepted:
        raise NeedleError(_nothing_accepted(plan, outcomes))
    settings = plan.settings
    return HeadScores(
        torch.stack(list(accepted.values())).mean(dim=0),
        method=f"headkv-{settings.kind}",
        heads="query",
        seed=settings.seed,
        samples=len(accepted),
        settings=json.dumps({**plan.asked(), **(asked or {})}),
        **facts,
    )


def right_scores(plan: NeedlePlan, outcomes: Sequence[Outcome]) -> dict[Cell, Tensor]:
    """[L, Hq] of every run that was answered right, by example, length and depth, in whatever order they were made."""
    found = {outcome.cell: outcome.scores for outcome in outcomes if outcome.scores is not None}
    return {cell: found[cell] for cell in plan.cells if cell in found}


def right_halves(plan: NeedlePlan, outcomes: Sequence[Outcome]) -> tuple[Tensor, Tensor] | None:
    """[L, Hq] twice, the means over every other prompt that was answered right; None where fewer than two were.

    The runs of one prompt are one and the same answer, so they are in the same half.
    """
    right = right_scores(plan, outcomes)
    return halves_of(
        [[right[cell] for cell in place.cells] for place in sorted(plan.places) if place.cells[0] in right]
    )


def halves_of(prompts: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor] | None:
    """The means over every other prompt, from the scores of every prompt's runs; None where there are not two."""
    if len(prompts) < 2:
        return None
    one, other = (torch.stack(list(chain.from_iterable(prompts[half::2]))).mean(dim=0) for half in (0, 1))
    return one, other


def check_hopeful(plan: NeedlePlan, outcomes: Sequence[Outcome], places: Sequence[Place] | None = None) -> None:
    """Raises NeedleError where so many prompts without a right answer were run that the others would be in vain.

    That is a third of them, and six at least; they are a fair sample, as the plan orders them. places: those of a
    shard.
    """
    made = {outcome.cell for outcome in outcomes}
    places = plan.places if places is None else places
    prompts = sum(not made.isdisjoint(place.cells) for place in places)
    enough = max(LEAST_PROMPTS, ceil(ENOUGH * len(places)))
    if enough <= prompts < len(places) and not right_scores(plan, outcomes):
        raise NeedleError(
            f"None of the first {prompts} of {len(places)} prompts was answered right, so the others are not run. "
            f"{_given(plan, outcomes)} Or run the others anyway with --keep-going; the journal has the first."
        )


def make_run(model: PreTrainedModel, plan: NeedlePlan, job: NeedleJob, chunk_size: int | None = None) -> Outcome:
    """One run, as the first of the job's cells. chunk_size: prefill so many tokens at a time."""
    settings = plan.settings
    tally = tally_for(settings.kind, job.prompt, len(full_layers(model)))
    text = answer(model, plan.tokenizer, job.prompt, tally, settings.max_new_tokens, chunk_size)
    right = is_right(settings.kind, job.example, text)
    return Outcome(job.cells[0], len(job.prompt.tokens), text, tally.scores() if right else None)


class NeedleShape(NamedTuple):
    """The shape of a run's scores."""

    layers: int
    query_heads: int


def needle_shape(model: PreTrainedModel) -> NeedleShape:
    """Full-attention layers, and query heads of each."""
    config = of_full_layers(model.config.get_text_config(decoder=True))
    return NeedleShape(len(full_layers(model)), config.num_attention_heads)


def _records(plan: NeedlePlan, shape: NeedleShape) -> RecordKind[NeedleRecord]:
    settings = plan.settings
    return needle_records(
        str(settings.kind), len(plan.examples), settings.lengths, settings.depths, settings.max_new_tokens, shape
    )


def _nothing_accepted(plan: NeedlePlan, outcomes: Sequence[Outcome]) -> str:
    return f"None of {len(outcomes)} runs was answered right, so there are no scores. {_given(plan, outcomes)}"


def _given(plan: NeedlePlan, outcomes: Sequence[Outcome]) -> str:
    """A few answers with their questions, and what may help."""
    shown = {outcome.text: plan.examples[outcome.cell.example] for outcome in outcomes}
    lines = [
        f"  {example.question}\n    right: {example.answer}\n    given: {text[:200] or '(nothing)'}"
        for text, example in list(shown.items())[:3]
    ]
    return "\n".join(
        [
            "Some of the answers:",
            *lines,
            "Give examples that the model can answer (--examples, --forms), or a model that reads such questions.",
        ]
    )
