"""A turn that is attended to whole and then folded: dense beside the tail, in one layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from winnow.cache.prefix import Prefix
from winnow.cache.tail import Tail
from winnow.kernels.interface import AttentionPlan, AttentionSpec, DecodePlan

Planner = Callable[[Sequence[Prefix | None], Tail, AttentionSpec], AttentionPlan]
"""A way to attend over a prefix and dense tokens of every row."""


def decode_plan(prefixes: Sequence[Prefix | None], dense: Tail, spec: AttentionSpec) -> DecodePlan:
    """The decode kernel's plan over a prefix and dense tokens of every row."""
    blocks = [prefix.block if prefix else None for prefix in prefixes]
    return DecodePlan(blocks, dense.segments(), spec)


class Turn:
    """All that a layer attends over while a turn comes that some of its rows fold right after.

    Layers that share these keys and values attend over it as well, when the layer itself holds the result already.
    """

    def __init__(
        self, prefixes: Sequence[Prefix | None], dense: Tail, rows: Sequence[int], planner: Planner = decode_plan
    ) -> None:
        """dense: the tail of every row with the turn behind it; rows: which are to be folded."""
        self._planner = planner
        self.prefixes = prefixes
        self.dense = dense
        self.rows = rows
        self._plan: AttentionPlan | None = None

    def plan(self, spec: AttentionSpec) -> AttentionPlan:
        """The decode kernel's plan over prefixes and dense tokens."""
        if self._plan is None or not spec.same_as(self._plan.spec):
            self._plan = self._planner(self.prefixes, self.dense, spec)
        return self._plan

    def row_plan(self, row: int, spec: AttentionSpec) -> AttentionPlan:
        """The same for one row alone, where padding leaves every row its own number of new tokens."""
        return self._planner(self.prefixes[row : row + 1], self.dense.one(row), spec)
