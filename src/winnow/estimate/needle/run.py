"""All runs of a plan, from a model and a journal to a table of head scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from winnow.estimate.errors import NeedleError
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
        scores = None if record.scores == REJECTED else torch.tensor(record.scores, dtype=torch.float64)
        cell = Cell(record.example, record.length, record.depth)
        return cls(cell, record.prompt_tokens, record.answer, scores)


def run_needles(
    model: PreTrainedModel,
    plan: NeedlePlan,
    journal: Journal,
    chunk_size: int | None = None,
    watch: NeedleProgress | None = None,
) -> Iterator[Outcome]:
    """Every run, in the order of the plan's places. What the journal does not have is made in its turn, and written.

    Raises NeedleError for a model that does not show its attention, and JournalError, naming the line, for a record
    that is no run of the plan, or contradicts another.
    """
    found = {outcome.cell: outcome for outcome in map(Outcome.of, journal.read(_records(plan, model)))}
    return _runs(model, plan, journal, found, chunk_size, watch)


def _runs(
    model: PreTrainedModel,
    plan: NeedlePlan,
    journal: Journal,
    found: dict[Cell, Outcome],
    chunk_size: int | None,
    watch: NeedleProgress | None,
) -> Iterator[Outcome]:
    for place in plan.places:
        known = next((found[cell] for cell in place.cells if cell in found), None)
        made = known or make_run(model, plan, plan.job(place), chunk_size)
        for cell in place.cells:
            if cell not in found:
                found[cell] = replace(made, cell=cell)
                journal.append(asdict(found[cell].record(plan)))
        if watch is not None:
            watch(place, known is not None)
        yield from (found[cell] for cell in place.cells)


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
    prompts = [[right[cell] for cell in place.cells] for place in sorted(plan.places) if place.cells[0] in right]
    if len(prompts) < 2:
        return None
    one, other = (torch.stack(list(chain.from_iterable(prompts[half::2]))).mean(dim=0) for half in (0, 1))
    return one, other


def check_hopeful(plan: NeedlePlan, outcomes: Sequence[Outcome]) -> None:
    """Raises NeedleError where so many prompts without a right answer were run that the others would be in vain.

    That is a third of them, and six at least; they are a fair sample, as the plan orders them.
    """
    made = {outcome.cell for outcome in outcomes}
    prompts = sum(not made.isdisjoint(place.cells) for place in plan.places)
    enough = max(LEAST_PROMPTS, ceil(ENOUGH * len(plan.places)))
    if enough <= prompts < len(plan.places) and not right_scores(plan, outcomes):
        raise NeedleError(
            f"None of the first {prompts} of {len(plan.places)} prompts was answered right, so the others are not run. "
            f"{_given(plan, outcomes)} Or run the others all the same, with --keep-going: the journal has the first."
        )


def make_run(model: PreTrainedModel, plan: NeedlePlan, job: NeedleJob, chunk_size: int | None = None) -> Outcome:
    """One run, as the first of the job's cells. chunk_size: prefill so many tokens at a time."""
    settings = plan.settings
    tally = tally_for(settings.kind, job.prompt, len(full_layers(model)))
    text = answer(model, plan.tokenizer, job.prompt, tally, settings.max_new_tokens, chunk_size)
    right = is_right(settings.kind, job.example, text)
    return Outcome(job.cells[0], len(job.prompt.tokens), text, tally.scores() if right else None)


def _records(plan: NeedlePlan, model: PreTrainedModel) -> RecordKind[NeedleRecord]:
    settings = plan.settings
    shape = len(full_layers(model)), model.config.get_text_config(decoder=True).num_attention_heads
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
