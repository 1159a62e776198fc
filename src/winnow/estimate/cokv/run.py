"""From a plan, an executor and a ledger to sliced Shapley values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from winnow.estimate.cokv.coverage import check_coverage
from winnow.estimate.cokv.estimator import Estimate, estimate_values
from winnow.estimate.cokv.exact import exact_shapley
from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.plan import Exhaustive, Sampled
from winnow.estimate.cokv.settings import StopRule
from winnow.estimate.errors import ShapleyError
from winnow.estimate.executors.base import Executor, Item
from winnow.heads.cokv_file import Halves

if TYPE_CHECKING:
    from torch import Tensor

ItemProgress = Callable[[int, int, Estimate | None], None]
"""Called after every item with items done, items in all if the limit is reached, and the last estimate."""


def run_sampled(
    plan: Sampled,
    rule: StopRule,
    executor: Executor[list[float]],
    ledger: Ledger,
    watch: ItemProgress | None = None,
    halves: Halves = "both",
) -> Estimate:
    """Evaluates batches until the rule is met, and estimates from these, whatever else the ledger has.

    The rule is asked after every batch in order, so the result does not depend on who evaluated what when. Raises
    ShapleyError, before anything is evaluated, where the rule's samples leave a player without one, and for utilities
    that are all the same.
    """
    check_coverage(plan, rule.samples, halves)
    most = plan.batches(rule.samples)
    # Enough for every worker to have one item in hand and one to come.
    ahead = max(1, -(-2 * executor.workers // len(ledger.kept))) if executor.workers > 1 else 1
    found: Estimate | None = None
    for batch in range(most):
        if batch % ahead == 0:
            block = range(batch, min(batch + ahead, most))
            _complete(block, executor, ledger, most, found, watch)
        found = _estimate_if_possible(plan, ledger, batch + 1, halves) if rule.overlap is not None else None
        if found is not None and rule.overlap is not None and found.overlap >= rule.overlap:
            return found
    return found or estimate_from(plan, ledger, most, halves)


def estimate_from(plan: Sampled, ledger: Ledger, batches: int, halves: Halves = "both") -> Estimate:
    """The estimate from the first batches. Raises ShapleyError as `estimate_values`."""
    first = plan.splits.first_parts(range(batches * plan.pairs))
    return estimate_values(first, ledger.utilities(range(batches)), halves)


def run_exhaustive(
    plan: Exhaustive, executor: Executor[list[float]], ledger: Ledger, watch: ItemProgress | None = None
) -> tuple[Tensor, Tensor]:
    """Shapley values [n] and the utilities [2^n] of all coalitions."""
    batches = range(plan.batches)
    _complete(batches, executor, ledger, plan.batches, None, watch)
    utilities = plan.utilities(ledger.utilities(batches))
    return exact_shapley(utilities), utilities


def run_shard(
    plan: Sampled,
    samples: int,
    shard: tuple[int, int],
    executor: Executor[list[float]],
    ledger: Ledger,
    watch: ItemProgress | None = None,
    halves: Halves = "both",
) -> None:
    """Evaluates the examples i, i + n, i + 2n, ... for shard (i, n), i from 0, for so many samples.

    Raises ShapleyError for fewer examples than shards: some would have nothing to do; and for too few samples.
    """
    check_shards(ledger.examples, shard[1])
    check_coverage(plan, samples, halves)
    batches = range(plan.batches(samples))
    mine = shard_examples(ledger.examples, shard)
    items = [Item(batch, example) for example in mine if example in ledger.kept for batch in batches]
    _evaluate(items, executor, ledger, len(items), None, watch)


def shard_examples(examples: int, shard: tuple[int, int] | None) -> range:
    """The examples of a shard (i, n), i from 0; all of them without one."""
    index, count = shard or (0, 1)
    return range(index, examples, count)


def check_shards(examples: int, shards: int) -> None:
    """Raises ShapleyError for fewer examples than shards."""
    if examples < shards:
        raise ShapleyError(
            f"{examples} validation examples cannot be divided among {shards} shards: use at most {examples}, or give "
            "more examples."
        )


def _complete(
    batches: Sequence[int],
    executor: Executor[list[float]],
    ledger: Ledger,
    most: int,
    found: Estimate | None,
    watch: ItemProgress | None,
) -> None:
    items = [Item(batch, example) for example in ledger.kept for batch in batches]
    _evaluate(items, executor, ledger, most * len(ledger.kept), found, watch)


def _evaluate(
    items: Sequence[Item],
    executor: Executor[list[float]],
    ledger: Ledger,
    total: int,
    found: Estimate | None,
    watch: ItemProgress | None,
) -> None:
    """The items that the ledger does not have yet."""
    for done in executor.run([item for item in items if item not in ledger]):
        ledger.add(done)
        if watch is not None:
            watch(len(ledger), total, found)


def _estimate_if_possible(plan: Sampled, ledger: Ledger, batches: int, halves: Halves) -> Estimate | None:
    """None while a player has no sample in one of the halves, or nothing tells coalitions apart."""
    try:
        return estimate_from(plan, ledger, batches, halves)
    except ShapleyError:
        return None
