"""The contract of a scorer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from winnow.view import Extra, LayerView


class Ranking(NamedTuple):
    """A scorer's verdict on a layer before the slots of its heads are known."""

    scores: Tensor
    """[H, N] fp32; higher is better, +inf means kept whatever happens, never NaN. Allocators compare heads by it."""
    basis: Tensor | None = None
    """[H, N] a second order, for scorers whose `refine` needs one; what is carried on, for those that accumulate."""


class Scorer(ABC):
    """The worth of each token to each KV head.

    A scorer never sees storage and never decides how many tokens stay. Subclasses are frozen dataclasses.
    """

    @property
    def guaranteed(self) -> int:
        """Tokens per head that are kept whatever the budget (observation window, sinks): the least budget."""
        return 0

    @property
    def window(self) -> int:
        """Last tokens of the prompt that are always kept."""
        return 0

    def queries_needed(self, length: int) -> int:
        """Last queries of a prompt of `length` tokens that the scores depend on."""
        return 0

    @property
    def extras(self) -> Extra:
        """Extras that the view must have besides queries, keys and values."""
        return Extra.NONE

    @property
    def accumulates(self) -> bool:
        """True if scores of kept tokens carry on when a long generation is compressed again.

        Such a scorer gets the queries of all tokens that came since, whatever `queries_needed` says.
        """
        return False

    @property
    def refines(self) -> bool:
        """True if `refine` orders tokens otherwise than the scores do."""
        return type(self).refine is not Scorer.refine

    @abstractmethod
    def __call__(self, view: LayerView) -> Tensor:
        """Scores [H, N] in fp32; higher is better, +inf means kept whatever happens. Never NaN."""

    def rank(self, view: LayerView) -> Ranking:
        """The scores, with what `refine` needs besides."""
        return Ranking(self(view))

    def refine(self, ranking: Ranking, slots: Tensor, view: LayerView) -> Tensor:
        """The final order [H, N] once every head knows its slots ([H] int64, on the CPU)."""
        return ranking.scores


class Refiner(Scorer):
    """A second stage over another scorer, `base`: what it asks for and keeps for sure is the base's."""

    base: Scorer

    @property
    def guaranteed(self) -> int:
        return self.base.guaranteed

    @property
    def window(self) -> int:
        return self.base.window

    @property
    def extras(self) -> Extra:
        return self.base.extras

    @property
    def accumulates(self) -> bool:
        return self.base.accumulates

    def queries_needed(self, length: int) -> int:
        return self.base.queries_needed(length)

    def __call__(self, view: LayerView) -> Tensor:
        return self.base(view)

    def rank(self, view: LayerView) -> Ranking:
        return self.base.rank(view)
