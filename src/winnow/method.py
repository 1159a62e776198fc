"""A method: a scorer, an allocator, a store and a budget."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from winnow.allocate import Allocator, Plan
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
        return self.name if self.full else f"{self.name} @ {self.budget}"

    @property
    def full(self) -> bool:
        """Whether every token of every prompt is kept."""
        return self.budget.unit == "everything"

    def layer_totals(self, length: int, heads: tuple[int, ...], bytes_per_slot: tuple[float, ...]) -> list[int]:
        """Slots of every compressed layer for a prompt of `length` tokens.

        heads: KV heads of every compressed layer; bytes_per_slot: of a slot in each, its index included.
        They sum to the budget, except where rounding="paper" drifts. Raises BudgetError for a byte budget
        that cannot hold what is always kept.
        """
        return list(_layer_totals(self, length, heads, bytes_per_slot))

    @torch.no_grad()
    def select(self, view: LayerView, total: int) -> Selection:
        """The positions that stay of one layer, `total` slots over all its heads."""
        heads, length, _ = view.keys.shape
        if total >= heads * length:
            return everything(heads, length, view.keys.device)
        scores = self.scorer(view)
        check_scores(scores, view.layer)
        slots = self.allocator.head_slots(scores, total, min(self.scorer.guaranteed, length), view.layer)
        return select(self.scorer.refine(scores, slots, view), slots, view.layer)


@lru_cache(maxsize=64)
def _layer_totals(
    method: Method, length: int, heads: tuple[int, ...], bytes_per_slot: tuple[float, ...]
) -> tuple[int, ...]:
    """Every layer of a prompt asks for the same totals, hence the cache."""
    guaranteed = min(method.scorer.guaranteed, length)
    slots = method.budget.slots(length, heads, bytes_per_slot, guaranteed)
    totals = method.allocator.layer_totals(Plan(slots, heads, length, guaranteed))
    # Layers of different slot size: what the allocator prefers may be dearer than the mean.
    while not method.budget.fits(totals, bytes_per_slot) and slots > guaranteed * sum(heads):
        slots -= max(1, slots // 256)
        slots = max(slots, guaranteed * sum(heads))
        totals = method.allocator.layer_totals(Plan(slots, heads, length, guaranteed))
    return tuple(totals)
