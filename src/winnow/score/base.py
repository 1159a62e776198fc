"""What a scorer sees and what it promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Flag, auto
from typing import NamedTuple, Protocol

from torch import Tensor


class Extra(Flag):
    """What a scorer may ask for besides queries, keys and values; nobody pays for what no one asked for."""

    NONE = 0
    COVERAGE = auto()
    ROTATION = auto()
    OUTPUT = auto()


class Rotation(Protocol):
    """The rotary position embedding of one layer; the identity where the layer has none."""

    def undo(self, queries: Tensor, first: int) -> Tensor:
        """Queries [Hq, n, D] at positions first … first + n - 1 as they were before their rotation."""

    def mean(self, first: int, count: int) -> Tensor:
        """[D, D]: mean of the rotation matrices of `count` positions from `first` on; rotates q as R·q."""


class LayerView(NamedTuple):
    """One sequence in one layer at the moment of compression (no padding, no batch axis).

    Where a long generation is compressed again (`cache/fold.py`), the N columns of a head are what it still holds: the
    slots it kept, then the tokens that came since. Heads that kept fewer slots than others have absent columns in
    between, so that first tokens come first and the window last in all of them.
    """

    layer: int
    """Index among the compressed layers of the model, from 0."""
    layers: int
    """How many compressed layers the model has."""
    queries: Tensor
    """[Hq, n, D] queries of the *last* n tokens after RoPE; n = min(N, scorer.queries_needed(N))."""
    keys: Tensor
    """[H, N, D] keys after RoPE."""
    values: Tensor
    """[H, N, Dv] values."""
    scaling: float
    """Factor on q·k before the softmax."""
    softcap: float | None = None
    """Logits are softcap·tanh(logit/softcap) where the model does so."""
    sinks: Tensor | None = None
    """[Hq] extra logits in the softmax denominator where the model has them."""
    coverage: Tensor | None = None
    """[N] int32, in how many earlier layers any head kept each token. Only for scorers with Extra.COVERAGE."""
    rotation: Rotation | None = None
    """How the queries were rotated. Only for scorers with Extra.ROTATION."""
    output: Tensor | None = None
    """[Hq, Dv, E] output projection: head h adds its attention output [Dv] times output[h]. With Extra.OUTPUT."""
    absent: Tensor | None = None
    """[H, N] bool, the columns that are no token of a head; None: every head holds N tokens. Keys and values are zero
    there. Scorers may return anything for them but NaN: nobody selects them."""
    positions: Tensor | None = None
    """[H, N] int64, which token of the sequence each column is, -1 where absent; None: column t is token t."""
    carried: Tensor | None = None
    """[H, M] fp32, `Ranking.basis` of the first M columns when they were kept, 0 where absent; the other N - M tokens
    came since. Only for scorers that accumulate, and None for a prompt."""


class Ranking(NamedTuple):
    """What a scorer says of a layer before the slots of its heads are known."""

    scores: Tensor
    """[H, N] fp32; higher is better, +inf means kept whatever happens, never NaN. Allocators compare heads by it."""
    basis: Tensor | None = None
    """[H, N] a second order, for scorers whose `refine` needs one; what is carried on, for those that accumulate."""


class Scorer(ABC):
    """What is each token worth to each KV head?

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
        """How many of the last queries of a prompt of `length` tokens the scores depend on."""
        return 0

    @property
    def extras(self) -> Extra:
        """What has to be in the view besides queries, keys and values."""
        return Extra.NONE

    @property
    def accumulates(self) -> bool:
        """Whether scores of kept tokens carry on when a long generation is compressed again.

        Such a scorer gets the queries of all tokens that came since, whatever `queries_needed` says.
        """
        return False

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
