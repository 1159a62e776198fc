"""One scorer asked once about a prompt, however many allocators and budgets use its scores."""

from __future__ import annotations

import time
from dataclasses import replace

from torch import Tensor

from winnow.method import Method
from winnow.score import LayerView, Scorer


class RememberedScorer(Scorer):
    """A scorer's answers for the layers of one prompt. Knows what asking again would have cost."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.saved_seconds = 0.0
        self._scores: dict[int, Tensor] = {}
        self._seconds: dict[int, float] = {}

    @property
    def guaranteed(self) -> int:
        return self.scorer.guaranteed

    @property
    def window(self) -> int:
        return self.scorer.window

    def queries_needed(self, length: int) -> int:
        return self.scorer.queries_needed(length)

    def __call__(self, view: LayerView) -> Tensor:
        if view.layer in self._scores:
            self.saved_seconds += self._seconds[view.layer]
        else:
            begin = time.perf_counter()
            self._scores[view.layer] = self.scorer(view)
            self._seconds[view.layer] = time.perf_counter() - begin
        return self._scores[view.layer].clone()

    def refine(self, scores: Tensor, slots: Tensor, view: LayerView) -> Tensor:
        return self.scorer.refine(scores, slots, view)


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
