"""A random sample of the runs behind needle scores, made again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winnow.estimate.errors import VerifyError
from winnow.estimate.needle.plan import Cell, NeedlePlan, Place
from winnow.estimate.needle.run import Outcome, make_run
from winnow.estimate.verify.agreement import Fresh
from winnow.heads.scores import HeadScores

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LEAST = 30
"""Runs below which their spread says nothing."""
# Heads with fewer runs that score than this have a spread of chance.
_SELDOM = 10
# So many standard deviations fewer right answers are no accident.
_UNLIKELY = 4


class Rerun:
    """Runs of a plan, each prompt once however many depths it stands for."""

    def __init__(
        self, model: PreTrainedModel, plan: NeedlePlan, cells: Sequence[Cell], chunk_size: int | None = None
    ) -> None:
        self._model = model
        self._plan = plan
        self._cells = frozenset(cells)
        self._chunk_size = chunk_size
        self.places = [place for place in plan.places if not self._cells.isdisjoint(place.cells)]
        """Prompts to run, in this order."""

    def outcomes(self, watch: Callable[[Place], None]) -> Iterator[Outcome]:
        """One for every cell, prompt by prompt; watch: called after every prompt."""
        for place in self.places:
            made = make_run(self._model, self._plan, self._plan.job(place), self._chunk_size)
            watch(place)
            yield from (replace(made, cell=cell) for cell in place.cells if cell in self._cells)


def choose(cells: Sequence[Cell], share: float, seed: int) -> list[Cell]:
    """A random share of the runs, at least 30 where there are as many."""
    count = min(len(cells), max(LEAST, round(share * len(cells))))
    return random.Random(f"verify-{seed}").sample(list(cells), count)


def least_right(again: int, runs: int, right: int) -> float:
    """The number of runs made again that must be right, if `right` of all `runs` were; one may always differ."""
    share = right / runs
    spread = sqrt(again * share * max(0.0, 1 - share) * max(0.0, 1 - again / runs))
    return again * share - 1 - _UNLIKELY * spread


def mean_and_error(table: HeadScores, outcomes: Sequence[Outcome], kv_heads: int) -> Fresh:
    """The means over the sample's right runs, and how far they may be from those over all runs of the table.

    Raises VerifyError with fewer than two right answers.
    """
    right = [outcome.scores for outcome in outcomes if outcome.scores is not None]
    if len(right) < 2:
        raise VerifyError(
            f"{len(right)} of {len(outcomes)} runs were answered right, so there is nothing to compare: these are "
            "scores of another model or of other examples."
        )
    runs = torch.stack(right)
    if table.heads == "kv":
        runs = runs.unflatten(2, (kv_heads, -1)).mean(dim=3)
    # The sample is a part of what the table is a mean of: the whole of it has no error.
    part = min(1.0, len(right) / (table.samples or len(right)))
    errors = (_variances(runs, table.values) / len(right) * (1 - part)).sqrt()
    return Fresh(runs.mean(dim=0), errors, len(right) - 1)


def _variances(runs: Tensor, expected: Tensor) -> Tensor:
    """[L, H] of a single run, from runs [n, L, H].

    A head that scores in one run of fifty, by the table, may not score in a sample at all and would have no variance.
    For such heads it is that of rare events: their mean times the size of one.
    """
    spread = runs.var(dim=0)
    seldom = (runs != 0).sum(dim=0) < _SELDOM
    sizes = runs[:, seldom] if bool(runs[:, seldom].any()) else runs
    size = (sizes**2).sum() / sizes.sum() if bool(sizes.any()) else torch.zeros((), device="cpu")
    return torch.where(seldom, torch.maximum(spread, expected.abs() * size), spread)
