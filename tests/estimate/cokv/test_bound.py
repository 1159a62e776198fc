"""Theorem 1 on what slicing loses."""

from __future__ import annotations

from itertools import combinations
from math import comb, log, sqrt

import pytest

from support.games import voting
from winnow.estimate.cokv.bound import slicing_bound
from winnow.estimate.cokv.exact import all_coalitions, exact_strata
from winnow.estimate.errors import ShapleyError


def test_bound() -> None:
    assert slicing_bound(16, 4, 0.5, 0.1) == 0.5 * sqrt(13 * log(20) / (2 * 4 * 16))
    assert slicing_bound(16, 8, 1, 0.05) < slicing_bound(16, 2, 1, 0.05)
    for wrong in ((4, 0, 1, 0.1), (4, 5, 1, 0.1), (4, 2, 1, 0.0), (4, 2, 1, 1.0), (4, 2, -1, 0.1)):
        with pytest.raises(ShapleyError):
            slicing_bound(*wrong)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_bound_holds_for_random_sizes(count: int) -> None:
    """Theorem 1 with delta 0.2, over all choices of so many sizes."""
    players = 8
    means = exact_strata(voting(9, [1, 2, 3, 4, 1, 2, 3, 4])(all_coalitions(players)))
    for player in means:
        bound = slicing_bound(players, count, float(player.max() - player.min()), 0.2)
        chosen = [player[list(sizes)].mean() - player.mean() for sizes in combinations(range(players), count)]
        assert sum(abs(float(gap)) > bound for gap in chosen) <= 0.2 * comb(players, count)
