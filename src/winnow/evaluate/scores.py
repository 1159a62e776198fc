"""One scorer asked once about a prompt, however many allocators and budgets use its scores."""

from __future__ import annotations

import time
from dataclasses import replace

from torch import Tensor

from winnow.composition.method import Method
from winnow.score import Ranking, Refiner, Scorer
from winnow.view import Extra, LayerView


class RememberedScorer(Refiner):
    """A scorer's answers for the layers of one prompt. Knows what asking again would have cost."""

    def __init__(self, scorer: Scorer) -> None:
        self.base = scorer
        self.saved_seconds = 0.0
        self._rankings: dict[int, Ranking] = {}
        self._seconds: dict[int, float] = {}

    def __call__(self, view: LayerView) -> Tensor:
        return self.rank(view).scores

    def rank(self, view: LayerView) -> Ranking:
        if Extra.COVERAGE in self.extras:
            # What earlier layers kept depends on allocation and budget.
            return self.base.rank(view)
        if view.layer in self._rankings:
            self.saved_seconds += self._seconds[view.layer]
        else:
            begin = time.perf_counter()
            self._rankings[view.layer] = self.base.rank(view)
            self._seconds[view.layer] = time.perf_counter() - begin
        ranking = self._rankings[view.layer]
        return ranking._replace(scores=ranking.scores.clone())

    def refine(self, ranking: Ranking, slots: Tensor, view: LayerView) -> Tensor:
        return self.base.refine(ranking, slots, view)


class PromptScores:
    """The remembered scorers of one prompt. Methods that differ in allocation or budget share theirs."""

    def __init__(self) -> None:
        self._scorers: dict[Scorer, RememberedScorer] = {}

    def sharing(self, method: Method) -> Method:
        """The same method, with a scorer that remembers."""
        return replace(method, scorer=self._remembered(method))

    def saved_seconds(self, method: Method) -> float:
        """What the scorer of a method has saved so far."""
        return self._remembered(method).saved_seconds

    def _remembered(self, method: Method) -> RememberedScorer:
        return self._scorers.setdefault(method.scorer, RememberedScorer(method.scorer))
