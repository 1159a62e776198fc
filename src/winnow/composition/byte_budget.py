"""Byte budgets: from bytes to slots before a prompt is seen, and from scores to full bytes, layer by layer.

A packed slot's bytes depend on its head, and heads get slots by scores, so only trying tells how many slots a layer's
bytes hold: allocations of the same kind, larger and smaller, are packed (or their size worked out) until one fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from winnow.allocate import Allocation, Allocator, SlotPlan
from winnow.budget import Budget, readable_bytes
from winnow.errors import BudgetError
from winnow.parameters import SLACK
from winnow.select import Selection
from winnow.store import Cost, Dense, Earlier, Store
from winnow.view import LayerView

_AIM, _FULL_ENOUGH = 0.998, 0.995
"""Shares of the bytes: what the next size is to take, and what is good enough."""
_LARGER = 1.05
"""Times the expected bytes that packed slots take at most, as a rule; they are known when a layer is packed."""
_ATTEMPTS = 24
"""Sizes to try: in proportion, as bytes are nearly a line; then, from the middle on, halving what is left."""


@dataclass(frozen=True)
class ByteBudget:
    """A budget in bytes, with the parts of a method that spend it."""

    name: str
    """The method's, for what is refused: one of many may be."""
    budget: Budget
    allocator: Allocator
    store: Store
    window: int
    """Last tokens of a prompt that the scorer always keeps."""

    def slots(self, length: int, heads: Sequence[int], costs: Sequence[Cost], guaranteed: int) -> int:
        """Slots over all layers and heads that a prompt of `length` tokens is expected to get.

        heads, costs: KV heads and cost of every compressed layer; guaranteed: slots per head that are always kept.
        Where costs differ between layers this is exact for uniform layers; see `fits`. Raises BudgetError for a
        budget that cannot hold what is always kept.
        """
        all_heads = sum(heads)
        least = all_heads * min(max(guaranteed, self.store.residual, 1), length)
        fixed = sum(cost.fixed for cost in costs)
        per_token = sum(count * cost.slot for count, cost in zip(heads, costs, strict=True))
        needed = math.ceil(fixed + per_token * least / all_heads)
        if self.budget.amount < needed:
            needed = math.ceil(needed if isinstance(self.store, Dense) else _LARGER * needed)
            raise BudgetError(
                f"A budget of {self.budget} cannot hold the {least // all_heads} tokens per head that {self.name} "
                f"keeps of a prompt of {length}: use at least {needed} bytes ({readable_bytes(needed)})."
            )
        return min(all_heads * length, math.floor((self.budget.amount - fixed) * all_heads / per_token + SLACK))

    def fits(self, totals: Sequence[int], costs: Sequence[Cost]) -> bool:
        """True if slots given to the layers are expected to stay within the budget."""
        return sum(_expected(totals, costs)) <= self.budget.amount

    def layer_bytes(self, totals: Sequence[int], costs: Sequence[Cost]) -> tuple[float, ...]:
        """The budget divided among the layers in proportion to what they are expected to take."""
        expected = _expected(totals, costs)
        return tuple(self.budget.amount * each / sum(expected) for each in expected)

    def fill(
        self,
        choose: Callable[[Allocation], Selection],
        view: LayerView,
        allocation: Allocation,
        there: int,
        earlier: Earlier | None,
    ) -> Selection:
        """The selection of an allocation like this one that fills the layer's bytes; dense slots need no trying.

        there: slots that could be selected; earlier: see `Store.pack`. Raises BudgetError where not even the smallest
        selection fits.
        """
        if allocation.bytes is None or isinstance(self.store, Dense):
            return choose(allocation)
        plan, limit = allocation.plan, allocation.bytes[view.layer]
        fitting: Selection | None = None
        low, slots, high = self._fewest(plan), plan.slots, plan.length * sum(plan.heads) + 1
        for attempt in range(_ATTEMPTS):
            selection = choose(self._resized(allocation, slots))
            size = self._size(view, selection, allocation, earlier)
            if size <= limit:
                fitting, low = selection, slots + 1
                if size >= _FULL_ENOUGH * limit or len(selection.positions) == there:
                    break
            else:
                high = slots
            if low >= high:
                break
            guess = int(slots * _AIM * limit / size) if attempt < _ATTEMPTS // 2 else (low + high) // 2
            slots = min(max(guess, low), high - 1)
        return fitting or self._refuse(choose, view, allocation, earlier)

    def _size(self, view: LayerView, selection: Selection, allocation: Allocation, earlier: Earlier | None) -> float:
        written = self.store.bytes(view.stored, selection, min(self.window, view.keys.shape[1]), earlier)
        return written + allocation.upkeep * len(selection.positions)

    def _resized(self, allocation: Allocation, slots: int) -> Allocation:
        plan = allocation.plan._replace(slots=slots)
        return allocation._replace(plan=plan, totals=tuple(self.allocator.layer_totals(plan)))

    @staticmethod
    def _fewest(plan: SlotPlan) -> int:
        """Slots that all layers have at least: one per head, where a method always keeps none."""
        return max(plan.guaranteed, 1) * sum(plan.heads)

    def _refuse(
        self,
        choose: Callable[[Allocation], Selection],
        view: LayerView,
        allocation: Allocation,
        earlier: Earlier | None,
    ) -> Selection:
        """Raise BudgetError with the bytes of all layers that this one needs for the least that it may keep."""
        plan, shares = allocation.plan, allocation.bytes
        assert shares is not None
        least = choose(self._resized(allocation, self._fewest(plan)))
        size = self._size(view, least, allocation, earlier)
        needed = math.ceil(1.02 * self.budget.amount * size / max(shares[view.layer], 1))
        raise BudgetError(
            f"A budget of {self.budget} gives layer {view.layer} {int(shares[view.layer])} bytes, which cannot hold "
            f"what {self.name} always keeps of it: use at least {needed} bytes, or a smaller window."
        )


class Spending:
    """Bytes that each layer took when it was compressed last, per row; what one leaves over goes to those after it."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, int], float] = {}

    def __copy__(self) -> Spending:
        twin = Spending()
        twin._taken = dict(self._taken)
        return twin

    def rest(self, row: int, layer: int, allocation: Allocation) -> Allocation:
        """The allocation, where this layer's bytes are its share of all that is left; layers come in their order."""
        if allocation.bytes is None:
            return allocation
        shares = allocation.bytes
        left = sum(shares) - sum(self._taken.get((row, before), 0.0) for before in range(layer))
        own = left * shares[layer] / sum(shares[layer:])
        return allocation._replace(bytes=(*shares[:layer], own, *shares[layer + 1 :]))

    def add(self, row: int, layer: int, taken: float) -> None:
        """Note the bytes of a layer that was compressed."""
        self._taken[row, layer] = taken


def _expected(totals: Sequence[int], costs: Sequence[Cost]) -> list[float]:
    """Bytes of every layer."""
    return [cost.fixed + total * cost.slot for total, cost in zip(totals, costs, strict=True)]
