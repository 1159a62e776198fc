"""A method: a scorer, an allocator, a store and a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from winnow.allocate import (
    Allocation,
    Allocator,
    SlotPlan,
    full_tensor,
    of_sharing_heads,
    shared_within,
    spanning_of,
    union_of,
)
from winnow.budget import Budget
from winnow.composition.byte_budget import ByteBudget
from winnow.composition.contract import check_form, check_scored, check_slots, check_totals
from winnow.errors import MethodError
from winnow.score import Ranking, Scorer
from winnow.score.base import asked_by, refined
from winnow.select import Selection, everything, select
from winnow.store import Cost, Dense, Earlier, Store
from winnow.view import Extra, LayerView

Rank = Callable[[Scorer, LayerView], Ranking]
"""A way to ask a scorer for its ranking of a layer: `own_ranking`, or one that remembers the answers."""


def own_ranking(scorer: Scorer, view: LayerView) -> Ranking:
    """The scorer's own ranking."""
    return scorer.rank(asked_by(scorer, view))


@dataclass(frozen=True)
class Method:
    """A compression method: a scorer, an allocator, a store and a budget. `winnow.method(name, budget=...)` makes it.

    Raises BudgetError if the budget is below what the scorer always keeps. Raises MethodError if the scorer needs to
    know what earlier layers kept, and the allocator decides that only after the last layer.
    """

    name: str
    """Canonical name of the method with its parts, without the budget: "adakv(window=16)"."""
    scorer: Scorer
    allocator: Allocator
    store: Store
    budget: Budget

    def __post_init__(self) -> None:
        self.budget.check(self.scorer.guaranteed, self.name)
        if Extra.COVERAGE in self.scorer.extras and spanning_of(self.allocator) is not None:
            raise MethodError(
                f"{self.name} needs to know which tokens earlier layers kept, but layers that share their slots decide "
                "after the last one; use another scorer (snapkv, h2o, expectedattention), or another allocator."
            )

    def __str__(self) -> str:
        return self.name if self.budget.unit == "everything" else f"{self.name} @ {self.budget}"

    @property
    def full(self) -> bool:
        """True if every token of every prompt is kept."""
        return self.budget.unit == "everything" and self.allocator.takes_budget

    @property
    def uncompressed(self) -> bool:
        """True if every token of every prompt is kept in dense slots, so that there is nothing to fold."""
        return self.full and isinstance(self.store, Dense)

    @property
    def byte_budget(self) -> ByteBudget:
        """The budget in bytes, for a method whose budget has that unit."""
        return ByteBudget(self.name, self.budget, self.allocator, self.store, self.scorer.window)

    def for_model(self, name: str, heads: tuple[int, ...]) -> Method:
        """The method for a particular model, with its head scores; see `Allocator.for_model`.

        The store uses the allocator's head scores, unless it has its own.
        """
        allocator = self.allocator.for_model(name, heads)
        scores = allocator.head_scores
        store = self.store if scores is None else self.store.with_head_scores(scores)
        return replace(self, allocator=allocator, store=store.for_model(name, heads))

    def queries_needed(self, length: int) -> int:
        """Number of last queries of a prompt of `length` tokens that scorer, allocator and store look at."""
        return max(self.scorer.queries_needed(length), self.queries_besides_sums(length))

    def queries_besides_sums(self, length: int) -> int:
        """The same, without the queries of a scorer that sums attention, which the view then has in `paid`."""
        spanning = spanning_of(self.allocator)
        rows = 0 if spanning is None else min(spanning.attention_rows, length)
        voting = 0 if self.scorer.sums_attention else self.scorer.queries_needed(length)
        return max(voting, self.store.queries_needed(length), rows)

    def allocation(self, length: int, heads: tuple[int, ...], costs: tuple[Cost, ...]) -> Allocation:
        """The slots for a prompt of `length` tokens, divided among the layers.

        The totals sum to the budget, except for the drift of rounding="paper".

        Args:
            length: number of tokens of the prompt.
            heads: number of KV heads of every compressed layer.
            costs: expected bytes of a slot in each of these layers.

        Raises:
            BudgetError: a budget in bytes that cannot hold what is always kept.
        """
        return _allocation(self, length, heads, costs)

    @torch.no_grad()
    def select(
        self, view: LayerView, allocation: Allocation, rank: Rank = own_ranking, earlier: Earlier | None = None
    ) -> Selection:
        """The columns of a layer to keep: allocation.totals[view.layer] over all its heads, or all if there are fewer.

        With a budget in bytes, as many are kept as fit into the layer's bytes once they are packed, together with what
        is packed already (`earlier`). Absent columns are never kept. Heads that share latents get one set, as the
        selection of a single head; see `HeadUnion`.

        Args:
            view: queries, keys and values of one row of the layer.
            allocation: the result of `allocation`.
            rank: a function that asks the scorer for its ranking.
            earlier: what the row's prefix holds already.

        Raises:
            MethodError: the scorer or the allocator breaks its contract.
            ModelError: a score is NaN.
        """
        there = int(view.stored.counts.sum())
        sizes_vary = allocation.bytes is not None and not isinstance(self.store, Dense)
        if allocation.totals[view.layer] >= there and not sizes_vary:
            return everything(view.stored.keys, view.absent)
        ranking = rank(self.scorer, view)
        check_scored(ranking.scores, view, self.scorer)
        ranking = ranking._replace(scores=_without(ranking.scores, view.absent))
        return self.byte_budget.fill(
            lambda tried: self._best(ranking, view, tried, there), view, allocation, there, earlier
        )

    def _best(self, ranking: Ranking, view: LayerView, allocation: Allocation, there: int) -> Selection:
        """The best columns for the slots of an allocation, where no head gets more than it has."""
        total = min(allocation.totals[view.layer], there)
        if total == there:
            return everything(view.stored.keys, view.absent)
        totals = tuple(total if layer == view.layer else each for layer, each in enumerate(allocation.totals))
        allocation = allocation._replace(totals=totals)
        if view.latents is not None:
            allocation = of_sharing_heads(allocation, len(view.keys))
        slots = self.allocator.head_slots(ranking.scores, allocation, view.layer)
        check_slots(slots, ranking.scores, allocation, view.layer, self.allocator)
        slots = shared_within(slots, view.counts, allocation.plan.guaranteed)
        order = refined(self.scorer, ranking, slots, view)
        check_form(order, view, type(self.scorer).__name__)
        order = _without(order, view.absent)
        if view.latents is not None:
            order = union_of(self.allocator).need(order, slots - allocation.plan.guaranteed)[None]
            slots = full_tensor(1, total)
        return select(order, slots, view.layer, type(self.scorer).__name__)


@lru_cache(maxsize=64)
def _allocation(method: Method, length: int, heads: tuple[int, ...], costs: tuple[Cost, ...]) -> Allocation:
    """Every layer of a prompt asks for the same, hence the cache."""
    guaranteed = min(method.scorer.guaranteed, length)
    if method.budget.unit != "bytes":
        plan = SlotPlan(method.budget.slots(length, heads, guaranteed), heads, length, guaranteed)
        return Allocation(plan, _totals(method.allocator, plan))
    slots = method.byte_budget.slots(length, heads, costs, guaranteed)
    plan = SlotPlan(slots, heads, length, guaranteed)
    totals = _totals(method.allocator, plan)
    # Layers of different slot size: what the allocator prefers may be dearer than the mean.
    while not method.byte_budget.fits(totals, costs) and slots > guaranteed * sum(heads):
        slots = max(slots - max(1, slots // 256), guaranteed * sum(heads))
        plan = plan._replace(slots=slots)
        totals = _totals(method.allocator, plan)
    return Allocation(plan, totals, method.byte_budget.layer_bytes(totals, costs))


def _totals(allocator: Allocator, plan: SlotPlan) -> tuple[int, ...]:
    totals = tuple(allocator.layer_totals(plan))
    check_totals(totals, plan, allocator)
    return totals


def _without(scores: Tensor, absent: Tensor | None) -> Tensor:
    return scores if absent is None else scores.masked_fill(absent, -torch.inf)
