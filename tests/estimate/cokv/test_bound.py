"""Theorem 1 on what slicing loses, Theorem 2 on what sampling does."""

from __future__ import annotations

from itertools import combinations
from math import comb, log, sqrt

import pytest

from support.games import voting
from winnow.estimate.cokv.bound import samples_needed, sampling_bound, slicing_bound
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


def test_samples_needed() -> None:
    # 1 · 2² · ln(2 / 0.05) / (2 · 0.1²) = 200 · ln 40
    assert samples_needed(1, 0.1, 0.05) == 738
    # 4 · 1² · ln(8 / 0.1) / (2 · 0.05²) = 800 · ln 80
    assert samples_needed(4, 0.05, 0.1, spread=1.0) == 3506
    for sizes, epsilon, delta in ((1, 0.1, 0.05), (7, 0.3, 0.01)):
        assert sampling_bound(samples_needed(sizes, epsilon, delta), sizes, delta) <= epsilon
        assert sampling_bound(samples_needed(sizes, epsilon, delta) - 1, sizes, delta) > epsilon
    for wrong in ((0, 0.1, 0.1), (1, 0.0, 0.1), (1, -1.0, 0.1), (1, 0.1, 0.0), (1, 0.1, 1.0), (1, float("nan"), 0.1)):
        with pytest.raises(ShapleyError):
            samples_needed(*wrong)


def test_errors_too_small_to_count_samples_for_are_refused_in_words() -> None:
    for epsilon in (1e-160, 1e-200, 1e-300):
        with pytest.raises(ShapleyError, match=f"epsilon of {epsilon:g} needs too many samples to count"):
            samples_needed(1, epsilon, 0.05)
    # 200 · (ln 2 - ln 5e-324)
    assert samples_needed(1, 0.1, 5e-324) == 149_027
    assert sampling_bound(samples_needed(1, 0.1, 5e-324), 1, 5e-324) <= 0.1
