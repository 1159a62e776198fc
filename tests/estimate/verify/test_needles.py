"""Samples of runs, and the errors of their means."""

from __future__ import annotations

import pytest
import torch

from winnow.estimate.errors import VerifyError
from winnow.estimate.needle.plan import Cell
from winnow.estimate.needle.run import Outcome
from winnow.estimate.verify.agreement import check_agreement
from winnow.estimate.verify.needles import choose, least_right, mean_and_error
from winnow.heads import HeadScores


def runs(scores):
    """Outcomes of one query head per KV head from scores [n, L, H]."""
    return [Outcome(Cell(index, 0, 0.0), 1, "", each) for index, each in enumerate(scores)]


def test_errors_are_those_of_a_sample_without_replacement():
    scores = torch.rand(50, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table = HeadScores(scores.mean(dim=0), "headkv-er", samples=50)
    half = mean_and_error(table, runs(scores[:25]), 2)
    torch.testing.assert_close(half.errors, (scores[:25].var(dim=0) / 25 / 2).sqrt())
    assert not mean_and_error(table, runs(scores), 2).errors.any()
    with pytest.raises(VerifyError, match="1 of 1 runs"):
        mean_and_error(table, runs(scores[:1]), 2)


def test_a_head_that_did_not_score_in_the_sample_may_still_have_a_score():
    scores = torch.zeros(50, 1, 2, dtype=torch.float64)
    scores[::2, 0, 0] = 0.1
    table = HeadScores(torch.tensor([[0.05, 0.002]]), "headkv-r", samples=500)
    found = mean_and_error(table, runs(scores), 2)
    # One run of fifty scores 0.1, so the chance of none in fifty is about e^-1.
    assert float(found.errors[0, 1]) == pytest.approx((0.002 * 0.1 / 50 * 0.9) ** 0.5)
    assert not check_agreement(table, found, independent=False).failures


def test_right_answers_are_counted():
    assert least_right(50, 500, 500) == 49
    assert 30 < least_right(50, 500, 470) < 44


def test_samples_are_a_share_of_the_runs_but_no_fewer_than_thirty():
    cells = [Cell(index, 0, 0.0) for index in range(500)]
    chosen = choose(cells, 0.1, 0)
    assert len(set(chosen)) == 50
    assert choose(cells, 0.1, 0) == chosen != choose(cells, 0.1, 1)
    assert len(choose(cells, 0.01, 0)) == 30
    assert len(choose(cells[:20], 0.01, 0)) == 20


def test_the_more_of_all_runs_are_made_again_the_less_is_chance():
    """All of them again are the same runs: one may differ."""
    assert least_right(500, 500, 250) == 249
    found = [least_right(again, 500, 250) / again for again in (50, 250, 450, 500)]
    assert found == sorted(found)
    assert least_right(50, 500, 250) == pytest.approx(25 - 1 - 4 * (50 * 0.25 * 0.9) ** 0.5)


def test_runs_of_query_heads_are_those_of_their_kv_heads():
    scores = torch.arange(8.0, dtype=torch.float64).view(2, 1, 4)
    table = HeadScores(torch.ones(1, 2), "headkv-er", samples=2)
    found = mean_and_error(table, runs(scores), 2)
    assert found.values.tolist() == [[2.5, 4.5]]
