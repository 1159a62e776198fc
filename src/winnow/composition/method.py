"""A method: a scorer, an allocator, a store and a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from winnow.allocate import Allocation, Allocator, Plan
from winnow.budget import Budget
from winnow.composition.byte_budget import Sizes, fill_bytes
from winnow.errors import BudgetError
from winnow.score import Ranking, Scorer
from winnow.select import Selection, check_scores, everything, select
from winnow.store import Cost, Dense, Store
from winnow.view import LayerView


@dataclass(frozen=True)
class Method:
    """Everything there is to decide about compressing a cache. Made by `winnow.method(name, budget=...)`.

    Raises BudgetError where the budget is below what the scorer always keeps.
    """

    name: str
    """Canonical composed name, without the budget: "adakv(window=16)"."""
    scorer: Scorer
    allocator: Allocator
    store: Store
    budget: Budget

    def __post_init__(self) -> None:
        self.budget.check(self.scorer.guaranteed, self.name)

    def __str__(self) -> str:
        return self.name if self.budget.unit == "everything" else f"{self.name} @ {self.budget}"

    @property
    def full(self) -> bool:
        """Whether every token of every prompt is kept."""
        return self.budget.unit == "everything" and self.allocator.takes_budget

    def for_model(self, name: str, heads: tuple[int, ...]) -> Method:
        """The method with what it knows of a model (head scores); see `Allocator.for_model`."""
        return replace(self, allocator=self.allocator.for_model(name, heads), store=self.store.for_model(name, heads))

    def queries_needed(self, length: int) -> int:
        """How many of the last queries of a prompt of `length` tokens scorer and store look at."""
        return max(self.scorer.queries_needed(length), self.store.queries_needed(length))

    def allocation(self, length: int, heads: tuple[int, ...], costs: tuple[Cost, ...]) -> Allocation:
        """How the slots for a prompt of `length` tokens are divided among the layers.

        heads: KV heads of every compressed layer; costs: what a slot is expected to take in each.
        The totals sum to the budget, except where rounding="paper" drifts. Raises BudgetError for a byte budget
        that cannot hold what is always kept.
        """
        return _allocation(self, length, heads, costs)

    @torch.no_grad()
    def select(self, view: LayerView, allocation: Allocation) -> Selection:
        """The positions that stay of one layer, allocation.totals[view.layer] slots over all its heads.

        With a budget in bytes, as many as the layer's bytes hold once they are packed.
        """
        if self._keeps_all(view, allocation) and not self.tries_sizes(allocation):
            return everything(view.keys.shape[0], view.keys.shape[1], view.keys.device)
        ranking = self.scorer.rank(view)
        check_scores(ranking.scores, view.layer)
        there = view.keys.shape[0] * view.keys.shape[1]
        return self.fitted(lambda tried: self._selected(ranking, view, tried), view, allocation, there)

    def tries_sizes(self, allocation: Allocation) -> bool:
        """Whether only packing tells how many slots an allocation's bytes hold: dense slots all take the same."""
        return allocation.bytes is not None and not isinstance(self.store, Dense)

    def _keeps_all(self, view: LayerView, allocation: Allocation) -> bool:
        heads, length, _ = view.keys.shape
        return allocation.totals[view.layer] >= heads * length

    def _selected(self, ranking: Ranking, view: LayerView, allocation: Allocation) -> Selection:
        if self._keeps_all(view, allocation):
            return everything(view.keys.shape[0], view.keys.shape[1], view.keys.device)
        slots = self.allocator.head_slots(ranking.scores, allocation, view.layer)
        return select(self.scorer.refine(ranking, slots, view), slots, view.layer)

    def fitted(
        self, choose: Callable[[Allocation], Selection], view: LayerView, allocation: Allocation, there: int
    ) -> Selection:
        """What `choose` selects of a layer with an allocation, or with one like it that fills the layer's bytes.

        there: slots that could be selected.

        What a slot takes depends on its head, and which heads get slots depends on the scores, so that allocations of
        the same kind, larger or smaller, are tried. Raises BudgetError where not even the smallest fits.
        """
        if allocation.bytes is None or not self.tries_sizes(allocation):
            return choose(allocation)
        plan, limit = allocation.plan, allocation.bytes[view.layer]
        heads, window = sum(plan.heads), min(self.scorer.window, plan.length)
        fitting = fill_bytes(
            limit,
            Sizes(plan.guaranteed * heads, plan.slots, plan.length * heads, there),
            lambda slots: choose(self._resized(allocation, slots)),
            lambda selection: self.store.bytes(view, selection, window),
        )
        if fitting is None:
            raise BudgetError(
                f"{self} cannot hold what it always keeps of layer {view.layer} in {int(limit)} bytes, that layer's "
                f"share: use at least {self._needed(choose, view, allocation)} bytes, or a smaller window."
            )
        return fitting

    def _needed(self, choose: Callable[[Allocation], Selection], view: LayerView, allocation: Allocation) -> int:
        """Bytes of all layers with which this one can hold the least that it may keep, and a little more."""
        plan, shares = allocation.plan, allocation.bytes
        assert shares is not None
        least = choose(self._resized(allocation, max(plan.guaranteed, 1) * sum(plan.heads)))
        size = self.store.bytes(view, least, min(self.scorer.window, plan.length))
        return math.ceil(1.02 * self.budget.amount * size / shares[view.layer])

    def _resized(self, allocation: Allocation, slots: int) -> Allocation:
        plan = allocation.plan._replace(slots=slots)
        return allocation._replace(plan=plan, totals=tuple(self.allocator.layer_totals(plan)))


@lru_cache(maxsize=64)
def _allocation(method: Method, length: int, heads: tuple[int, ...], costs: tuple[Cost, ...]) -> Allocation:
    """Every layer of a prompt asks for the same, hence the cache."""
    guaranteed = min(method.scorer.guaranteed, length)
    per_slot, fixed = [cost.slot for cost in costs], sum(cost.fixed for cost in costs)
    slots = method.budget.slots(length, heads, per_slot, guaranteed, fixed)
    plan = Plan(slots, heads, length, guaranteed)
    totals = method.allocator.layer_totals(plan)
    # Layers of different slot size: what the allocator prefers may be dearer than the mean.
    while not method.budget.fits(totals, per_slot, fixed) and slots > guaranteed * sum(heads):
        slots -= max(1, slots // 256)
        slots = max(slots, guaranteed * sum(heads))
        plan = plan._replace(slots=slots)
        totals = method.allocator.layer_totals(plan)
    return Allocation(plan, tuple(totals), _layer_bytes(method.budget, totals, costs))


def _layer_bytes(budget: Budget, totals: list[int], costs: tuple[Cost, ...]) -> tuple[float, ...] | None:
    """A budget in bytes, divided among the layers in proportion to what they are expected to take."""
    if budget.unit != "bytes":
        return None
    expected = [cost.fixed + total * cost.slot for total, cost in zip(totals, costs, strict=True)]
    return tuple(budget.amount * each / sum(expected) for each in expected)
