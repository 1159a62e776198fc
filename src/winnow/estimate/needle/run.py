"""All runs of a plan, from a model and a journal to a table of head scores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from winnow.estimate.errors import NeedleError
from winnow.estimate.journal import Journal
from winnow.estimate.needle.capture import full_layers
from winnow.estimate.needle.generate import answer
from winnow.estimate.needle.judging import is_right
from winnow.estimate.needle.plan import Cell, NeedleJob, NeedlePlan
from winnow.estimate.needle.scoring import tally_for
from winnow.estimate.records import REJECTED, NeedleRecord, RecordKind, needle_records
from winnow.heads.scores import HeadScores

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    model: PreTrainedModel, plan: NeedlePlan, journal: Journal, chunk_size: int | None = None
) -> Iterator[Outcome]:
    """Every run of the plan. Those that the journal does not have are made when it is their turn, and written there.

    Raises NeedleError for a model that does not show its attention, and JournalError, naming the line, for a record
    that is no run of the plan, or contradicts another.
    """
    found = {outcome.cell: outcome for outcome in map(Outcome.of, journal.read(_records(plan, model)))}
    return _runs(model, plan, journal, found, chunk_size)


def _runs(
    model: PreTrainedModel, plan: NeedlePlan, journal: Journal, found: dict[Cell, Outcome], chunk_size: int | None
) -> Iterator[Outcome]:
    for job in plan.jobs():
        missing = [cell for cell in job.cells if cell not in found]
        if missing:
            known = next((found[cell] for cell in job.cells if cell in found), None)
            made = known or make_run(model, plan, job, chunk_size)
            for cell in missing:
                found[cell] = replace(made, cell=cell)
                journal.append(asdict(found[cell].record(plan)))
        yield from (found[cell] for cell in job.cells)


def mean_scores(
    plan: NeedlePlan, outcomes: list[Outcome], asked: Mapping[str, str] | None = None, **facts: Any
) -> HeadScores:
    """The mean [L, Hq] over the accepted runs.

    asked: what the plan does not know, for the table's settings. facts: what else is said about it (model, date, ...).

    Raises NeedleError where no run was accepted, with a few of the answers.
    """
    accepted = [outcome.scores for outcome in outcomes if outcome.scores is not None]
    if not accepted:
        raise NeedleError(_nothing_accepted(plan, outcomes))
    settings = plan.settings
    return HeadScores(
        torch.stack(accepted).mean(dim=0),
        method=f"headkv-{settings.kind}",
        heads="query",
        seed=settings.seed,
        samples=len(accepted),
        settings=json.dumps({**plan.asked(), **(asked or {})}),
        **facts,
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


def _nothing_accepted(plan: NeedlePlan, outcomes: list[Outcome]) -> str:
    shown = {outcome.text: plan.examples[outcome.cell.example] for outcome in outcomes}
    lines = [
        f"  {example.question}\n    right: {example.answer}\n    given: {text[:200] or '(nothing)'}"
        for text, example in list(shown.items())[:3]
    ]
    return "\n".join(
        [
            f"None of {len(outcomes)} runs was answered right, so there are no scores. Some of the answers:",
            *lines,
            "Give examples that the model can answer (--examples, --forms), or a model that reads such questions.",
        ]
    )
