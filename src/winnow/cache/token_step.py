"""One more token of every row of a compressed layer, when nothing about it is unusual.

Most of a generation is such tokens, and what a layer would look at for them is the same every time. So it is worked out
once, after a token that was looked at in full, and for the next ones only what may have changed is: whatever is not as
it was goes the general way.
"""

from __future__ import annotations

import sys
from weakref import ref

import torch
from torch import Tensor, nn

from winnow.cache.gradients import wants_gradients
from winnow.cache.recent_queries import RecentQueries
from winnow.cache.tail import Tail
from winnow.kernels.interface import AttentionPlan
from winnow.kernels.step import DecodeStep, native_plan

TokenMark = tuple[int, Tensor | int, int]
"""A layer before a token: what it had seen, the tail's lengths (see `Tail.mark`), the column of the ring to spare."""


class TokenStep:
    """Tokens that come one by one, as long as a layer's plan, its tail and its ring of queries stay the same."""

    __slots__ = (
        "_attention",
        "_kernel",
        "_longest",
        "_recent",
        "_ring",
        "_scaling",
        "_sinks",
        "_softcap",
        "_tail",
        "plan",
    )

    @classmethod
    def after(
        cls,
        plan: AttentionPlan,
        query: Tensor,
        tail: Tail,
        recent: RecentQueries | None,
        attention: ref[nn.Module],
        fold_every: int | None,
    ) -> TokenStep | None:
        """For tokens after one whose query [R, Hq, 1, D] attended by `plan`; None where they go the general way.

        attention: the module that the layer belongs to. fold_every: tokens at which the tail is folded.
        """
        # Looked at first: where other kernels serve this is asked after every token.
        if native_plan(plan) is None or (recent is not None and not recent.is_full()):
            return None
        ring = recent.ring if recent is not None and recent.count else None
        kernel = DecodeStep.over(plan, tail.segments(), ring, query)
        return None if kernel is None else cls(plan, kernel, tail, recent, ring, attention, fold_every)

    def __init__(
        self,
        plan: AttentionPlan,
        kernel: DecodeStep,
        tail: Tail,
        recent: RecentQueries | None,
        ring: Tensor | None,
        attention: ref[nn.Module],
        fold_every: int | None,
    ) -> None:
        self.plan = plan
        """The step serves as long as this is the layer's plan."""
        self._kernel = kernel
        self._tail = tail
        self._recent = recent
        self._ring = ring
        self._attention = attention
        self._longest = sys.maxsize if recent is None or fold_every is None else fold_every
        self._scaling, self._softcap, self._sinks = plan.spec

    def serves(self, recent: RecentQueries | None) -> bool:
        """True if the layer's ring of queries is still this one."""
        return self._ring is None or (recent is not None and recent.ring is self._ring)

    def takes(self, keys: Tensor, values: Tensor) -> bool:
        """True if keys [R, H, 1, D] and values [R, H, 1, Dv] are as before, and nothing is to be folded."""
        recent = self._recent
        return (
            self._kernel.takes(keys, values)
            and self._tail.longest < self._longest
            and (recent is None or self._ring is None or recent.ring is self._ring)
            and not (torch.is_grad_enabled() and wants_gradients(keys, values))
        )

    def mark(self, seen: int) -> TokenMark:
        """The layer, which has seen so many tokens, before the next one."""
        tail, recent = self._tail, self._recent
        return seen, tail.mark() if tail.ragged else tail.longest, 0 if recent is None else recent.next

    def asks(
        self, attention: nn.Module, query: Tensor, scaling: float | None, softcap: float | None, sinks: Tensor | None
    ) -> bool:
        """True if the same module attends in the same way, with a query [R, Hq, 1, D] as before."""
        return (
            self._attention() is attention
            and scaling == self._scaling
            and softcap == self._softcap
            and sinks is self._sinks
            and self._kernel.asks(query)
            and not (torch.is_grad_enabled() and query.requires_grad)
        )

    def run(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor | None:
        """The output [R, 1, Hq, Dv]; tail and ring hold the token then. None: nothing was done, there is no room."""
        recent = self._recent
        output = self._kernel.run(query, keys, values, recent.next if recent is not None else 0)
        if output is not None:
            self._tail.longest += 1
            if recent is not None:
                recent.advance()
        return output
