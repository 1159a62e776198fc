"""The worth of all heads and of none, asked of every example before any coalition.

An example that the whole cache answers wrong tells nothing of heads: it is known after two answers instead of after
thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from winnow.estimate.cokv.ledger import Baseline, Ledger
from winnow.estimate.errors import ShapleyError
from winnow.estimate.executors.base import BASELINE, Executor, Item


@dataclass(frozen=True)
class Screening:
    """Baselines of examples."""

    baselines: dict[int, Baseline]
    """By example; those that a journal of an earlier version began with have none."""

    @property
    def missed(self) -> tuple[int, ...]:
        """Examples that are worth nothing with all heads."""
        return tuple(example for example, found in sorted(self.baselines.items()) if found.all_heads == 0)

    @property
    def indifferent(self) -> bool:
        """True if none of the others is answered better with all heads than with none."""
        others = [found for found in self.baselines.values() if found.all_heads > 0]
        return bool(others) and all(found.no_heads >= found.all_heads for found in others)


def screen(
    executor: Executor[list[float]], ledger: Ledger, examples: Sequence[int], watch: Callable[[], None] = lambda: None
) -> Screening:
    """Asks what the ledger does not know; watch: called after every example.

    Examples that coalitions answered already, in a journal of an earlier version, are not asked.
    """
    begun = ledger.begun()
    unknown = [each for each in examples if ledger.baseline(each) is None and each not in begun]
    for done in executor.run([Item(BASELINE, example) for example in unknown]):
        ledger.add(done)
        watch()
    return screened(ledger, examples)


def screened(ledger: Ledger, examples: Sequence[int]) -> Screening:
    """The baselines that a ledger has of these examples."""
    found = {example: ledger.baseline(example) for example in examples}
    return Screening({example: baseline for example, baseline in found.items() if baseline is not None})


def leave_out_missed(ledger: Ledger, screening: Screening) -> None:
    """Leaves out the examples that the whole cache misses. Raises ShapleyError where no other is left."""
    ledger.leave_out(screening.missed)
    if not ledger.kept:
        raise ShapleyError(
            f"None of the {ledger.examples} validation examples is answered right with all heads, so no coalition can "
            "have a value: use questions that this model answers (winnow run shows its answers), or allow longer "
            "answers (--max-new-tokens). --keep-missed evaluates coalitions anyway."
        )
