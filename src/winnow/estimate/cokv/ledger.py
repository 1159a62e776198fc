"""Values of the items evaluated so far, on the disk and in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from winnow.estimate.errors import JournalError, ShapleyError
from winnow.estimate.executors.base import Done, Item
from winnow.estimate.journal import Journal, Record


class Ledger:
    """The values of finished items; with a journal, those of earlier runs as well, and new ones are written there."""

    def __init__(self, examples: int, journal: Journal | None = None) -> None:
        self.examples = examples
        self.journal = journal
        self._values: dict[Item, list[float]] = {}
        for record in journal.records() if journal else ():
            self._keep(read_record(record))

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, item: Item) -> bool:
        return item in self._values

    def add(self, done: Done) -> None:
        """Keeps an item, on the disk first. Raises JournalError where it cannot be written."""
        if self.journal is not None:
            self.journal.append({"batch": done.item.batch, "example": done.item.example, "u": done.values})
        self._keep(done)

    def merge(self, others: Iterable[Done]) -> None:
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

    def _keep(self, done: Done) -> None:
        self._values[done.item] = done.values


def read_record(record: Record) -> Done:
    """An item from a line of a journal. Raises JournalError where it is none."""
    try:
        return Done(Item(record["batch"], record["example"]), [float(value) for value in record["u"]])
    except (KeyError, TypeError, ValueError):
        raise JournalError(f"The journal has a record that is no evaluated item: {record}.") from None
