"""A method: a scorer, an allocator, a store and a budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from winnow.allocate import Allocation, Allocator, Plan
from winnow.budget import Budget
from winnow.score import LayerView, Scorer
from winnow.select import Selection, check_scores, everything, select
from winnow.store import Store


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

    def allocation(self, length: int, heads: tuple[int, ...], bytes_per_slot: tuple[float, ...]) -> Allocation:
        """How the slots for a prompt of `length` tokens are divided among the layers.

        heads: KV heads of every compressed layer; bytes_per_slot: of a slot in each, its index included.
        The totals sum to the budget, except where rounding="paper" drifts. Raises BudgetError for a byte budget
        that cannot hold what is always kept.
        """
        return _allocation(self, length, heads, bytes_per_slot)

    @torch.no_grad()
    def select(self, view: LayerView, allocation: Allocation) -> Selection:
        """The positions that stay of one layer, allocation.totals[view.layer] slots over all its heads."""
        heads, length, _ = view.keys.shape
        if allocation.totals[view.layer] >= heads * length:
            return everything(heads, length, view.keys.device)
        ranking = self.scorer.rank(view)
        check_scores(ranking.scores, view.layer)
        slots = self.allocator.head_slots(ranking.scores, allocation, view.layer)
        return select(self.scorer.refine(ranking, slots, view), slots, view.layer)


@lru_cache(maxsize=64)
def _allocation(method: Method, length: int, heads: tuple[int, ...], bytes_per_slot: tuple[float, ...]) -> Allocation:
    """Every layer of a prompt asks for the same, hence the cache."""
    guaranteed = min(method.scorer.guaranteed, length)
    slots = method.budget.slots(length, heads, bytes_per_slot, guaranteed)
    plan = Plan(slots, heads, length, guaranteed)
    totals = method.allocator.layer_totals(plan)
    # Layers of different slot size: what the allocator prefers may be dearer than the mean.
    while not method.budget.fits(totals, bytes_per_slot) and slots > guaranteed * sum(heads):
        slots -= max(1, slots // 256)
        slots = max(slots, guaranteed * sum(heads))
        plan = plan._replace(slots=slots)
        totals = method.allocator.layer_totals(plan)
    return Allocation(plan, tuple(totals))
