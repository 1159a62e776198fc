"""Needle runs of several journals, put together without model, tokenizer or haystack."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain, groupby
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from winnow.estimate.errors import JournalError
from winnow.estimate.journal import Journal
from winnow.estimate.needle.plan import Cell
from winnow.estimate.needle.run import Outcome, halves_of
from winnow.estimate.needle.settings import NeedleKind
from winnow.estimate.records import MOST, needle_records
from winnow.estimate.seeds import SEEDS
from winnow.typed import Between, OneOf, Sized, TypedError, read_as

_Count = Annotated[int, Between(1, 2**16)]

OF_THE_MODEL = ("task", "model", "model_config", "weights", "layers", "query_heads", "heads")
"""Keys of a journal's configuration that say what the model is; the others are what was asked for."""


@dataclass(frozen=True)
class NeedleConfig:
    """The part of a journal's configuration that scores are computed from."""

    task: Literal["needle"]
    model: str
    layers: _Count
    query_heads: _Count
    heads: _Count
    kind: Annotated[str, OneOf(tuple(map(str, NeedleKind)))]
    seed: Annotated[int, SEEDS]
    lengths: Annotated[list[Annotated[int, Between(0, MOST)]], Sized(1)]
    depths: Annotated[list[Annotated[float, Between(0, 1)]], Sized(1)]
    answer_tokens: Annotated[int, Between(1, MOST)]
    examples: Annotated[int, Between(1, 2**20)]

    @property
    def cells(self) -> list[Cell]:
        """Every run, by example, length and depth."""
        return [
            Cell(example, length, depth)
            for example in range(self.examples)
            for length in self.lengths
            for depth in self.depths
        ]


def needle_config(journal: Journal) -> NeedleConfig:
    """The configuration in a journal's first line. Raises JournalError where it is none, or of an earlier version."""
    known = {field.name for field in fields(NeedleConfig)}
    told = {name: value for name, value in journal.config.items() if name in known}
    try:
        found = read_as(NeedleConfig, told)
        if found.query_heads % found.heads:
            raise TypedError(f"{found.query_heads} query heads do not divide among {found.heads} KV heads")
    except TypedError as problem:
        raise JournalError(
            f"{journal.path}, line 1: {problem}. Give journals that winnow heads needle wrote with --shard."
        ) from None
    return found


def settings_of_journal(journal: Journal) -> str:
    """Settings of a table: all that was asked for."""
    return json.dumps({name: value for name, value in journal.config.items() if name not in OF_THE_MODEL})


def merged_runs(config: NeedleConfig, journals: Iterable[Journal]) -> dict[Cell, Outcome]:
    """The runs of all journals. Raises JournalError for a record that is no run, or contradicts another."""
    shape = config.layers, config.query_heads
    kind = needle_records(config.kind, config.examples, config.lengths, config.depths, config.answer_tokens, shape)
    known: dict[Cell, tuple[Journal, Any]] = {}
    for journal in journals:
        for record in journal.read(kind):
            outcome = Outcome.of(record)
            where, earlier = known.setdefault(outcome.cell, (journal, record))
            if earlier != record:
                raise JournalError(
                    f"{journal.path}: example {record.example}, length {record.length}, depth {record.depth:g} has "
                    f"another result in {where.path}: their shards ran with different software or hardware, so they "
                    "cannot be merged."
                )
    return {cell: Outcome.of(known[cell][1]) for cell in config.cells if cell in known}


def merged_halves(outcomes: Sequence[Outcome]) -> tuple[Tensor, Tensor] | None:
    """As `right_halves`, from all runs by example, length and depth.

    Runs of one prompt are told by their results, equal to the last bit: those of neighboring depths, and of lengths
    that are equal at every depth.
    """
    of_one_text: dict[tuple[int, tuple[_Result, ...]], list[list[Outcome]]] = {}
    for (example, _), found in groupby(outcomes, key=lambda each: each.cell[:2]):
        runs = list(found)
        of_one_text.setdefault((example, tuple(map(_Result.of, runs))), []).append(runs)
    prompts = []
    for lengths in of_one_text.values():
        for _, depths in groupby(zip(*lengths, strict=True), key=lambda each: _Result.of(each[0])):
            runs = list(chain.from_iterable(depths))
            prompts.append([run.scores for run in runs if run.scores is not None])
    return halves_of([scores for scores in prompts if scores])


class _Result(NamedTuple):
    """All that a run says of its prompt."""

    prompt_tokens: int
    text: str
    bits: bytes

    @classmethod
    def of(cls, run: Outcome) -> _Result:
        bits = b"" if run.scores is None else run.scores.contiguous().view(torch.uint8).numpy().tobytes()
        return cls(run.prompt_tokens, run.text, bytes(bits))
