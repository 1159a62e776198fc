"""The contract of a scorer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from winnow.view import Extra, LayerView, QueryMoments, ReplayView, last_queries


class Ranking(NamedTuple):
    """The scores of a layer, before the slots of its heads are known."""

    scores: Tensor
    """[H, N] fp32; higher is better, +inf means kept whatever happens, never NaN. Allocators compare heads by it."""
    basis: Tensor | None = None
    """[H, N] a second order, for scorers whose `refine` needs one."""
    carried: Tensor | None = None
    """[H, N] fp32, what every slot carries on, for scorers that accumulate by slots."""
    moments: QueryMoments | None = None
    """Moments of all queries so far, for scorers that carry that on."""


_LONG = 1 << 40
"""Tokens: more than any prompt has."""


class Scorer(ABC):
    """Base of scorers, which say what each token is worth to each KV head.

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
    def needs_all_queries(self) -> bool:
        """True if scores depend on more queries, the longer the prompt is."""
        return self.queries_needed(_LONG) != self.queries_needed(2 * _LONG)

    @property
    def watches_end(self) -> bool:
        """True if scores depend on queries, and on so many last ones only, however long the prompt is."""
        return self.queries_needed(_LONG) > 0 and not self.needs_all_queries

    @property
    def extras(self) -> Extra:
        """Extras that the view must have besides queries, keys and values."""
        return Extra.NONE

    @property
    def accumulates(self) -> bool:
        """True if what the queries so far said carries on when a long generation is compressed again.

        Such a scorer gets the queries of all tokens that came since, whatever `queries_needed` says.
        """
        return False

    @property
    def sums_attention(self) -> bool:
        """True if the scores depend on queries by what they paid in all, which `LayerView.paid` may hold.

        A prompt's attention is then summed up while the model attends, so that its queries need not be kept.
        """
        return False

    @property
    def replayer(self) -> Replayer | None:
        """The scorer that has the prompt read a second time, if one does."""
        return None

    @property
    def refines(self) -> bool:
        """True if `refine` orders tokens otherwise than the scores do."""
        return type(self).refine is not Scorer.refine

    @property
    def carries_slots(self) -> bool:
        """True if it accumulates slot by slot, in `Ranking.carried`."""
        return False

    def moments_bytes(self, query_heads: int, dim: int) -> int:
        """Bytes that carry on with every layer: `Ranking.moments` of `query_heads` heads of `dim` channels."""
        return 0

    @abstractmethod
    def __call__(self, view: LayerView) -> Tensor:
        """Scores [H, N] in fp32; higher is better, +inf means kept whatever happens. Never NaN."""

    def rank(self, view: LayerView) -> Ranking:
        """The scores, with what `refine` needs besides."""
        return Ranking(self(view))

    def refine(self, ranking: Ranking, slots: Tensor, view: LayerView) -> Tensor:
        """The final order [H, N] once every head knows its slots ([H] int64, on the CPU).

        The view is that of the ranking, without its queries.
        """
        return ranking.scores


def asked_by(scorer: Scorer, view: LayerView) -> LayerView:
    """The view with as many queries as a scorer asks for, whatever others ask for besides.

    A scorer that accumulates, or whose attention was summed up, sees all that are there.
    """
    if scorer.accumulates or view.paid is not None:
        return view
    return view._replace(queries=last_queries(view.queries, scorer.queries_needed(view.keys.shape[1])))


def refined(scorer: Scorer, ranking: Ranking, slots: Tensor, view: LayerView) -> Tensor:
    """The final order [H, N] of a ranking; see `Scorer.refine`."""
    return scorer.refine(ranking, slots, view._replace(queries=last_queries(view.queries, 0)))


class Replayer(Scorer):
    """Base of scorers that have the model read the prompt again, chunk by chunk, before anything is compressed.

    The scorer gets the result of this reading as `LayerView.replayed`.
    """

    chunk: int
    """Tokens of the prompt that are read at a time."""
    sinks: int
    """First tokens of the prompt that a replay sees besides its chunk."""

    @property
    def extras(self) -> Extra:
        return Extra.REPLAY

    @property
    def replayer(self) -> Replayer | None:
        return self

    @property
    def hidden_norms(self) -> bool:
        """True if a replay needs the norms of hidden states."""
        return False

    @abstractmethod
    def replayed(self, view: ReplayView) -> Tensor:
        """Worth [H, C] in fp32 of a chunk's tokens, from the model's second reading of them. Never NaN."""


class Refiner(Scorer):
    """Base of scorers that refine another scorer, `base`. They need and always keep what the base does."""

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

    @property
    def sums_attention(self) -> bool:
        return self.base.sums_attention

    @property
    def carries_slots(self) -> bool:
        return self.base.carries_slots

    @property
    def replayer(self) -> Replayer | None:
        return self.base.replayer

    def queries_needed(self, length: int) -> int:
        return self.base.queries_needed(length)

    def moments_bytes(self, query_heads: int, dim: int) -> int:
        return self.base.moments_bytes(query_heads, dim)

    def __call__(self, view: LayerView) -> Tensor:
        return self.base(view)

    def rank(self, view: LayerView) -> Ranking:
        return self.base.rank(view)
