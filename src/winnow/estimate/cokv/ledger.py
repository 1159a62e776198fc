"""Values of the items evaluated so far, on the disk and in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from winnow.estimate.cokv.plan import CoalitionPlan
from winnow.estimate.errors import ShapleyError
from winnow.estimate.executors.base import Done, Item
from winnow.estimate.journal import Journal
from winnow.estimate.records import coalition_records


class Ledger:
    """The values of finished items. Those of a `journaled` one are kept on the disk as well."""

    def __init__(self, examples: int) -> None:
        self.examples = examples
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
        return len(self._values)

    def __contains__(self, item: Item) -> bool:
        return item in self._values

    def add(self, done: Done[list[float]]) -> None:
        """Keeps an item, on the disk first. Raises JournalError where it cannot be written."""
        if self._journal is not None:
            self._journal.append({"batch": done.item.batch, "example": done.item.example, "u": done.values})
        self._values[done.item] = done.values

    def merge(self, others: Iterable[Done[list[float]]]) -> None:
        """Takes over what others evaluated. Raises ShapleyError where they found other values for the same item."""
        for done in others:
            if self._values.get(done.item, done.values) != done.values:
                raise ShapleyError(
                    f"Two journals have different values for batch {done.item.batch} of example {done.item.example}: "
                    "their shards ran with different software or hardware, so they cannot be merged."
                )
            if done.item not in self:
                self.add(done)

    def complete_batches(self) -> int:
        """The number of batches, from the first on, that are known for all examples."""
        batch = 0
        while all(Item(batch, example) in self for example in range(self.examples)):
            batch += 1
        return batch

    def missing_examples(self) -> list[int]:
        """Examples of which the first batch that not all have is missing."""
        batch = self.complete_batches()
        return [example for example in range(self.examples) if Item(batch, example) not in self]

    def utilities(self, batches: Sequence[int]) -> Tensor:
        """[M, 2] float64: U(S) and U(rest) of all pairs of these batches, means over the examples."""
        total = torch.zeros(sum(len(self._values[Item(batch, 0)]) for batch in batches), dtype=torch.float64)
        # One example after another: the same order, and so the same bits, however the items came.
        for example in range(self.examples):
            values = [value for batch in batches for value in self._values[Item(batch, example)]]
            total += torch.tensor(values, dtype=torch.float64)
        return (total / self.examples).view(-1, 2)


def evaluated(journal: Journal, plan: CoalitionPlan, examples: int) -> list[Done[list[float]]]:
    """The items that a journal has values of. Raises JournalError as `Ledger.journaled`."""
    kind = coalition_records(plan.most_batches, 2 * plan.pairs, examples)
    return [Done(Item(found.batch, found.example), list(map(float, found.u))) for found in journal.read(kind)]
