"""New tokens of every row of a compressed layer in a step that is captured, to be replayed for later tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from winnow.cache.recent_queries import RecentQueries
from winnow.cache.tail import Tail
from winnow.cache.token_step import TokenMark
from winnow.kernels.interface import AttentionPlan, AttentionSpec


class CapturedStep(ABC):
    """The part of a layer in such a step, of which the layer itself counts nothing."""

    __slots__ = ("_count", "_recent", "_tail", "plan", "queries", "taken")

    def __init__(self, plan: AttentionPlan, tail: Tail, recent: RecentQueries | None, count: int = 1) -> None:
        """count: tokens of a row."""
        self.plan = plan
        self._tail = tail
        self._recent = recent
        self._count = count
        self.taken = 0
        """Tokens of a row that went this way."""
        self.queries: Tensor | None = None
        """[R, Hq, n, D] theirs, in memory that replays write; None where nobody asks for them."""

    def serves(self, recent: RecentQueries | None) -> bool:
        """True: layers go this way only while a step is captured."""
        return True

    def takes(self, keys: Tensor, values: Tensor) -> bool:
        """True for the tokens of every row: keys [R, H, n, D] and values [R, H, n, Dv]."""
        return keys.shape[2] == self._count and not self.taken

    def mark(self, seen: int) -> TokenMark:
        """The layer, which has seen so many tokens, before the next one."""
        return seen, self._tail.mark(), 0 if self._recent is None else self._recent.next

    def asks(
        self, attention: nn.Module, query: Tensor, scaling: float | None, softcap: float | None, sinks: Tensor | None
    ) -> bool:
        """True if attention is as in the steps before, which the plan was made for."""
        factor = query.shape[-1] ** -0.5 if scaling is None else scaling
        return AttentionSpec(factor, softcap, sinks).same_as(self.plan.spec)

    @abstractmethod
    def run(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The output [R, n, Hq, Dv] of queries [R, Hq, n, D]; tail and ring hold the tokens then."""
