"""The memory that a graph of a step reads and writes, by its owners: it serves as long as these are the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from torch import Tensor

from winnow.cache.layer import CompressedLayer
from winnow.cache.linear_states import LinearStates
from winnow.cache.recent_queries import RecentQueries
from winnow.cache.sliding_layer import CompactSlidingLayer
from winnow.cache.tail import Tail
from winnow.cache.window_ring import WindowRing
from winnow.kernels.interface import AttentionPlan
from winnow.kernels.step import DecodeStep

T = TypeVar("T")


class LayerMemory(NamedTuple):
    """Memory of a compressed layer."""

    plan: AttentionPlan
    tail: Tail
    recent: RecentQueries | None
    ring: Tensor | None

    @classmethod
    def of(cls, layer: CompressedLayer) -> LayerMemory | None:
        """The memory of a layer's next token; None where that goes the general way."""
        plan, tail, recent = layer.ready_plan(), layer.tail, layer.recent
        if plan is None or tail is None:
            return None
        return cls(plan, tail, recent, None if recent is None else recent.ring)


class WindowMemory(NamedTuple):
    """Memory of a sliding layer."""

    ring: WindowRing
    step: DecodeStep

    @classmethod
    def of(cls, layer: CompactSlidingLayer) -> WindowMemory | None:
        """The memory of a layer's next token; None where that needs other than the latest."""
        ring = layer.ring
        step = None if ring is None else ring.ready_step()
        return None if ring is None or step is None else cls(ring, step)


class StepMemory(NamedTuple):
    """Memory of all layers."""

    layers: list[LayerMemory]
    windows: list[WindowMemory]
    states: tuple[Tensor, ...]
    """Those of linear layers."""

    @classmethod
    def of(
        cls, layers: Iterable[CompressedLayer], sliding: Iterable[CompactSlidingLayer], linear: LinearStates
    ) -> StepMemory | None:
        """The memory of the next token; None where an ordinary step is due."""
        found, windows = _all_of(map(LayerMemory.of, layers)), _all_of(map(WindowMemory.of, sliding))
        return None if found is None or windows is None else cls(found, windows, linear.tensors())

    def same_as(self, other: StepMemory | None) -> bool:
        """True if these are the very objects."""
        if other is None:
            return False
        mine, others = (*self.layers, *self.windows, self.states), (*other.layers, *other.windows, other.states)
        pairs = zip(mine, others, strict=True)
        return all(a is b for one, another in pairs for a, b in zip(one, another, strict=True))


def _all_of(found: Iterable[T | None]) -> list[T] | None:
    """A list; None where one is missing."""
    there = list(found)
    return None if any(each is None for each in there) else [each for each in there if each is not None]
