"""Intervals and tests of means, against all resamples and all signs written out."""

from __future__ import annotations

import math
from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.runs.intervals import DIFFERENCES, SHARES, Bootstrap, Clusters, mean_interval, sign_flip_p


def all_means(values: list[float], names: list[str]) -> list[float]:
    """The means of all resamples of clusters, each as likely as any other."""
    clusters = [[value for value, name in zip(values, names, strict=True) if name == each] for each in set(names)]
    drawn = (list(chain.from_iterable(chosen)) for chosen in product(clusters, repeat=len(clusters)))
    return sorted(sum(chosen) / len(chosen) for chosen in drawn)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([0.0, 1.0], ["a", "b"]),
        ([0.0, 0.0, 1.0, 1.0], ["a", "b", "c", "d"]),
        ([0.1, 0.25, 0.7, 0.9, 1.0], ["a", "b", "c", "d", "e"]),
        ([1.0, 1.0, 0.0, 0.5, 0.2], ["a", "a", "b", "c", "c"]),
        ([-1.0, 2.0, 2.0, 2.0, -0.5, 7.0], ["a", "a", "a", "b", "b", "c"]),
    ],
)
def test_the_interval_is_that_of_all_resamples(values, names):
    means = all_means(values, names)
    drawn = mean_interval([Clusters.of(values, names)], bootstrap=Bootstrap(resamples=40_000, level=0.6, seed=3))
    assert drawn.mean == pytest.approx(sum(values) / len(values))
    for end, tail in ((drawn.low, 0.2), (drawn.high, 0.8)):
        # A quantile of draws lies between those of the whole a little to its left and right.
        least = np.quantile(means, tail - 0.015, method="lower")
        most = np.quantile(means, tail + 0.015, method="higher")
        assert least - 1e-12 <= end <= most + 1e-12


def test_two_values_give_what_one_works_out_by_hand():
    """A quarter of the resamples has the mean 0, a half 0.5, a quarter 1."""
    task = [Clusters.of([0.0, 1.0])]
    assert mean_interval(task, bootstrap=Bootstrap(level=0.95)) == (0.5, 0.0, 1.0)
    assert mean_interval(task, bootstrap=Bootstrap(level=0.4)) == (0.5, 0.5, 0.5)


def test_intervals_cover_the_mean_as_often_as_they_say():
    """Means of 60 values from a normal distribution; the bootstrap's intervals are a little narrow then."""
    rng = np.random.default_rng(11)
    samples = rng.normal(2.0, 3.0, size=(400, 60))
    found = [mean_interval([Clusters.of(each)], bootstrap=Bootstrap(resamples=600)) for each in samples]
    covered = sum(each.low <= 2.0 <= each.high for each in found)
    assert 0.91 <= covered / len(found) <= 0.98


def test_questions_about_one_context_count_as_one():
    """Ten contexts, each with eight questions that are all right or all wrong, tell as much as ten questions."""
    values = [float(each) for each in (1, 0, 1, 1, 0, 1, 1, 0, 1, 1)]
    alone = mean_interval([Clusters.of(values)])
    repeated = [value for value in values for _ in range(8)]
    names = [str(index) for index in range(10) for _ in range(8)]
    assert mean_interval([Clusters.of(repeated, names)]) == pytest.approx(alone)
    naive = mean_interval([Clusters.of(repeated)])
    assert naive.high - naive.low < 0.5 * (alone.high - alone.low)


def test_a_mean_over_tasks_weighs_tasks_alike():
    many, few = Clusters.of([1.0, 0.0] * 50), Clusters.of([0.0, 0.0, 1.0, 0.0])
    both = mean_interval([many, few])
    assert both.mean == (0.5 + 0.25) / 2
    # Standard errors of independent means add up as squares.
    spread = math.hypot(0.5 / 10, math.sqrt(0.1875 / 4)) / 2
    assert both.high - both.low == pytest.approx(2 * 1.96 * spread, rel=0.15)


def test_values_that_are_all_alike_leave_room_for_others():
    """Ten of ten right answers do not say 100 %: one in four wrong would have been missed once in twenty times."""
    all_right = mean_interval([Clusters.of([1.0] * 10)], SHARES)
    assert all_right == (1.0, pytest.approx(0.05**0.1), 1.0)
    assert all_right.low == pytest.approx(0.7411, abs=1e-4)
    hundred = mean_interval([Clusters.of([0.0] * 100)], SHARES)
    assert hundred.high == pytest.approx(3 / 100, rel=0.02)  # the rule of three
    same = mean_interval([Clusters.of([0.0] * 10)], DIFFERENCES)
    assert (same.low, same.high) == (pytest.approx(0.05**0.1 - 1), pytest.approx(1 - 0.05**0.1))
    assert mean_interval([Clusters.of([2.5] * 4)]) == (2.5, 2.5, 2.5)
    # Clusters are what is drawn.
    assert mean_interval([Clusters.of([1.0] * 10, list("aabbccddee"))], SHARES).low == pytest.approx(0.05**0.2)


def test_contexts_of_different_answers_that_have_one_mean_leave_room_as_well():
    """Drawn again, ten contexts with one right answer of two each have the same mean every time."""
    names = [str(index // 2) for index in range(20)]
    found = mean_interval([Clusters.of([1.0, 0.0] * 10, names)], SHARES)
    assert found == (0.5, pytest.approx(0.5 * 0.05**0.1), pytest.approx(1 - 0.5 * 0.05**0.1))
    # 0.1 + 0.2 is not 0.3 in binary.
    rounded = mean_interval([Clusters.of([0.1, 0.2, 0.15], ["a", "a", "b"])], SHARES)
    assert (rounded.low, rounded.high) == (pytest.approx(0.15 * 0.05**0.5), pytest.approx(1 - 0.85 * 0.05**0.5))
    assert mean_interval([Clusters.of([1.0, 0.0] * 10, names)]) == (0.5, 0.5, 0.5)


def test_tasks_that_are_all_alike_tell_together():
    tasks = [Clusters.of([1.0] * 10), Clusters.of([1.0] * 10)]
    assert mean_interval(tasks, SHARES).low == pytest.approx(0.05 ** (1 / 20))
    mixed = [Clusters.of([1.0] * 10), Clusters.of([0.0] * 10)]
    found = mean_interval(mixed, SHARES)
    assert (found.low, found.high) == (pytest.approx(0.05**0.1 / 2), pytest.approx(1 - 0.05**0.1 / 2))


def flips(differences: list[float]) -> float:
    """The p-value by trying every combination of signs."""
    total = abs(sum(differences))
    sums = [abs(sum(signs)) for signs in product(*((each, -each) for each in differences))]
    return sum(each >= total - 1e-12 for each in sums) / len(sums)


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0, 0.5, 0.25]), min_size=1, max_size=9))
@settings(max_examples=60, deadline=None)
def test_the_test_of_few_differences_tries_all_signs(differences):
    assert sign_flip_p([Clusters.of(differences)]) == pytest.approx(flips(differences))


def test_the_test_of_many_differences_draws_signs():
    """Twelve of sixteen that differ speak for one side: the binomial distribution says how rare that is."""
    differences = [1.0] * 12 + [-1.0] * 4 + [0.0] * 50
    exact = 2 * sum(math.comb(16, wins) for wins in range(12, 17)) / 2**16
    assert sign_flip_p([Clusters.of(differences)]) == pytest.approx(exact, abs=0.01)
    # Probabilities of 0 do not come from draws.
    assert sign_flip_p([Clusters.of([1.0] * 200)]) == pytest.approx(1 / 10_001)


def test_five_wins_of_five_are_not_enough():
    assert sign_flip_p([Clusters.of([1.0] * 5)]) == 2 / 32
    assert sign_flip_p([Clusters.of([1.0] * 6)]) == 2 / 64


def test_signs_are_those_of_clusters_and_of_all_tasks():
    clustered = Clusters.of([1.0] * 12, [str(index // 3) for index in range(12)])
    assert sign_flip_p([clustered]) == 2 / 2**4
    assert sign_flip_p([Clusters.of([1.0] * 3), Clusters.of([1.0] * 3)]) == 2 / 2**6


@given(st.lists(st.tuples(st.floats(-5, 5), st.sampled_from("abc")), min_size=1, max_size=20), st.randoms())
@settings(max_examples=50, deadline=None)
def test_the_order_of_examples_changes_nothing(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    few = Bootstrap(resamples=200)
    first, second = (
        mean_interval([Clusters.of(*zip(*each, strict=True))], bootstrap=few) for each in (pairs, shuffled)
    )
    assert first == pytest.approx(second, abs=1e-9)


def test_the_same_seed_gives_the_same_interval():
    task = [Clusters.of(np.random.default_rng(1).normal(size=50))]
    assert mean_interval(task) == mean_interval(task)
    assert mean_interval(task) != mean_interval(task, bootstrap=Bootstrap(seed=1))


def test_nothing_has_no_interval():
    with pytest.raises(ValueError, match="at least one"):
        Clusters.of([])
