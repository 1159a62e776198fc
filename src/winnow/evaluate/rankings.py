"""The rankings of one prompt, asked for once, however many allocators and budgets use them."""

from __future__ import annotations

import time

from winnow.composition.method import own_ranking
from winnow.score import Ranking, Scorer
from winnow.view import Extra, LayerView


class RememberedRankings:
    """A `Rank` that remembers what scorers said of each layer, and knows what asking again would have cost."""

    def __init__(self) -> None:
        self.saved_seconds = 0.0
        self._known: dict[tuple[Scorer, int], tuple[Ranking, float]] = {}

    def __call__(self, scorer: Scorer, view: LayerView) -> Ranking:
        """The ranking of a layer. What earlier layers kept depends on the whole method, so coverage is not shared."""
        if Extra.COVERAGE in scorer.extras:
            return own_ranking(scorer, view)
        key = (scorer, view.layer)
        if key in self._known:
            self.saved_seconds += self._known[key][1]
        else:
            begin = time.perf_counter()
            ranking = own_ranking(scorer, view)
            self._known[key] = (ranking, time.perf_counter() - begin)
        ranking = self._known[key][0]
        return ranking._replace(scores=ranking.scores.clone())
