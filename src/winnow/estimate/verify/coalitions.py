"""Fresh coalitions, independent of those behind CoKV scores, evaluated and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from winnow.estimate.cokv.coverage import covering_batches
from winnow.estimate.cokv.estimator import Stratum, contributions, sliced, strata
from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.errors import VerifyError
from winnow.estimate.executors.base import Done, Item, Worker
from winnow.estimate.verify.agreement import Fresh
from winnow.heads.cokv_file import Halves

_MOST_BATCHES = 4_096
# Samples that every head needs in coalitions of every size.
_LEAST = 2


class Redrawn:
    """Batches of a plan, evaluated one after another."""

    def __init__(self, worker: Worker[list[float]], plan: Sampled, batches: int, examples: int, halves: Halves) -> None:
        self._worker = worker
        self._plan = plan
        self._batches = batches
        self._halves = halves
        self._ledger = Ledger(examples)

    @property
    def items(self) -> int:
        """The number of items."""
        return self._batches * self._ledger.examples

    def evaluate(self) -> Iterator[None]:
        """Yields after every item. All batches of an example follow each other: its prompt is read once."""
        for example in range(self._ledger.examples):
            for batch in range(self._batches):
                item = Item(batch, example)
                self._ledger.add(Done(item, self._worker(item)))
                yield

    def fresh(self, samples: int) -> Fresh:
        """Sliced Shapley values [n], with the errors of their difference to a table of so many samples."""
        first = self._plan.splits.first_parts(range(self._batches * self._plan.pairs))
        found = strata(first, contributions(first, self._ledger.utilities(range(self._batches))), self._halves)
        errors = (_squared_errors(found) * (1 + len(first) / samples)).sqrt()
        return Fresh(sliced(found), errors, len(first) - 1)


def expected_batches(plan: Sampled, share: float, samples: int, halves: Halves = "both") -> int:
    """So many that they hold the share of the samples, and every head twice in coalitions of every size.

    Raises VerifyError where that takes too many.
    """
    covering = covering_batches(plan, _LEAST, 1, _MOST_BATCHES, halves)
    if covering is None:
        raise VerifyError("Coalitions of these sizes hardly ever include every head, so they cannot be drawn again.")
    return max(covering, plan.batches(max(1, round(share * samples))))


def _squared_errors(found: Mapping[int, Stratum]) -> Tensor:
    """[n]. A head has few samples at some sizes, so all heads share one variance per size."""
    errors = [_shared_variance(stratum) / stratum.counts for stratum in found.values()]
    return torch.stack(errors).sum(dim=0) / len(found) ** 2


def _shared_variance(stratum: Stratum) -> Tensor:
    """The variance of a single sample, from all heads; [] float64."""
    weights = (stratum.counts - 1).clamp(min=0)
    return (stratum.variances.nan_to_num() * weights).sum() / weights.sum()
