"""Values of the items evaluated so far, on the disk and in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from winnow.estimate.cokv.plan import CoalitionPlan
from winnow.estimate.errors import ShapleyError
from winnow.estimate.executors.base import BASELINE, Done, Item
from winnow.estimate.journal import Journal
from winnow.estimate.records import BaselineRecord, CoalitionRecord, coalition_records


class Baseline(NamedTuple):
    """The utility of all heads, and of none, for one example."""

    all_heads: float
    no_heads: float


class Ledger:
    """The values of finished items. Those of a `journaled` one are kept on the disk as well."""

    def __init__(self, examples: int) -> None:
        self.examples = examples
        self.kept = tuple(range(examples))
        """Examples that utilities are means over; see `leave_out`."""
        self._journal: Journal | None = None
        self._values: dict[Item, list[float]] = {}

    @classmethod
    def journaled(cls, journal: Journal, plan: CoalitionPlan, examples: int) -> Ledger:
        """The values that a journal has, and new ones are written there.

        Raises JournalError, naming the line, for a record that is of no item of the plan, or contradicts another.
        """
        ledger = cls(examples)
        ledger.merge(evaluated(journal, plan, examples))
        ledger._journal = journal
        return ledger

    def __len__(self) -> int:
        """Batches of coalitions, whatever their example; baselines do not count."""
        return len(self._values) - sum(Item(BASELINE, example) in self._values for example in range(self.examples))

    def __contains__(self, item: Item) -> bool:
        return item in self._values

    def add(self, done: Done[list[float]]) -> None:
        """Keeps an item, on the disk first. Raises JournalError where it cannot be written."""
        if self._journal is not None:
            self._journal.append(_record(done))
        self._values[done.item] = done.values

    def merge(self, others: Iterable[Done[list[float]]]) -> None:
        """Takes over what others evaluated. Raises ShapleyError where they found other values for the same item."""
        for done in others:
            if self._values.get(done.item, done.values) != done.values:
                raise ShapleyError(
                    f"Two journals have different values for {done.item}: their shards ran with different software or "
                    "hardware, so they cannot be merged."
                )
            if done.item not in self:
                self.add(done)

    def baseline(self, example: int) -> Baseline | None:
        """The utility of all heads and of none; None where nobody asked."""
        values = self._values.get(Item(BASELINE, example))
        return None if values is None else Baseline(*values)

    def begun(self) -> set[int]:
        """Examples that any batch of coalitions answered."""
        return {item.example for item in self._values if item.batch != BASELINE}

    def leave_out(self, examples: Iterable[int]) -> None:
        """Forgets examples, here and not on the disk: utilities are means over the others from now on."""
        gone = set(examples)
        self.kept = tuple(example for example in self.kept if example not in gone)
        self._values = {
            item: values for item, values in self._values.items() if item.batch == BASELINE or item.example not in gone
        }

    def complete_batches(self) -> int:
        """The number of batches, from the first on, that are known for all examples."""
        batch = 0
        while self.kept and all(Item(batch, example) in self for example in self.kept):
            batch += 1
        return batch

    def missing_examples(self) -> list[int]:
        """Examples of which the first batch that not all have is missing."""
        batch = self.complete_batches()
        return [example for example in self.kept if Item(batch, example) not in self]

    def utilities(self, batches: Sequence[int]) -> Tensor:
        """[M, 2] float64: U(S) and U(rest) of all pairs of these batches, means over the examples."""
        first = self.kept[0]
        total = torch.zeros(
            sum(len(self._values[Item(batch, first)]) for batch in batches), dtype=torch.float64, device="cpu"
        )
        # One example after another: the same order, and so the same bits, however the items came.
        for example in self.kept:
            values = [value for batch in batches for value in self._values[Item(batch, example)]]
            total += torch.tensor(values, dtype=torch.float64, device="cpu")
        return (total / len(self.kept)).view(-1, 2)


def evaluated(journal: Journal, plan: CoalitionPlan, examples: int) -> list[Done[list[float]]]:
    """The items that a journal has values of. Raises JournalError as `Ledger.journaled`."""
    kind = coalition_records(plan.most_batches, 2 * plan.pairs, examples)
    return [_done(found) for found in journal.read(kind)]


def _record(done: Done[list[float]]) -> dict[str, Any]:
    if done.item.batch == BASELINE:
        return {"example": done.item.example, **Baseline(*done.values)._asdict()}
    return {"batch": done.item.batch, "example": done.item.example, "u": done.values}


def _done(found: BaselineRecord | CoalitionRecord) -> Done[list[float]]:
    if isinstance(found, BaselineRecord):
        return Done(Item(BASELINE, found.example), [float(found.all_heads), float(found.no_heads)])
    return Done(Item(found.batch, found.example), list(map(float, found.u)))
