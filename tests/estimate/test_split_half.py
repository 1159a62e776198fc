"""Noise is told from signal by the halves of an estimation."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from winnow.estimate.errors import NoiseError
from winnow.estimate.split_half import SplitHalf, check_signal


def noise_rate(heads: int, draw, draws: int = 2000) -> float:
    """Share of halves that have nothing in common and pass for signal."""
    generator = torch.Generator().manual_seed(0)
    passed = sum(not SplitHalf.of(draw(heads, generator), draw(heads, generator)).noise for _ in range(draws))
    return passed / draws


def normal(heads, generator):
    return torch.randn(heads, generator=generator)


def sparse(heads, generator):
    """Most heads never copy a needle: scores that are zero, with ties."""
    values = torch.rand(heads, generator=generator)
    return torch.where(values > 0.7, values, torch.zeros(()))


@pytest.mark.parametrize("draw", [normal, sparse])
@pytest.mark.parametrize("heads", [16, 336])
def test_noise_passes_one_time_in_twenty(heads, draw):
    assert 0.02 < noise_rate(heads, draw) < 0.08


def test_the_limit_is_that_of_all_orders():
    """For 8 heads, among the 40,320 orders that chance may give."""
    ranks = torch.arange(8.0)
    limit = SplitHalf(1.0, 8).chance
    orders = torch.tensor(list(itertools.permutations(range(8))), dtype=torch.float64)
    found = 1 - 6 * (orders - ranks).square().sum(dim=1) / (8 * 63)
    assert float((found > limit).double().mean()) == pytest.approx(0.05, abs=0.015)
    assert float(found.var(correction=0)) == pytest.approx(1 / 7)
    assert SplitHalf.of(ranks, orders[1234]).correlation == pytest.approx(float(found[1234]))


def test_signal_passes():
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(24, 14, generator=generator)
    for _ in range(100):
        halves = (truth + torch.randn(24, 14, generator=generator) for _ in range(2))
        found = SplitHalf.of(*halves)
        assert not found.noise
        assert found.correlation == pytest.approx(0.5, abs=0.2)


def test_what_is_no_order_is_noise():
    assert SplitHalf.of(torch.zeros(4, 4), torch.rand(4, 4)).noise
    assert math.isnan(SplitHalf.of(torch.zeros(4, 4), torch.rand(4, 4)).correlation)
    assert SplitHalf.of(torch.zeros(1), torch.zeros(1)).noise
    assert SplitHalf(-1.0, 400).noise


def test_the_error_says_why_and_what_helps():
    check_signal(SplitHalf(0.9, 16), "4 runs", "Nothing.")
    with pytest.raises(NoiseError, match=r"^1 of 18 runs: too little to tell .*\. More of them\.$"):
        check_signal(None, "1 of 18 runs", "More of them.")
    told = r"by chance only|no better than chance \(rank correlation 0\.05 over 336 heads, by chance up to 0\.09\)"
    with pytest.raises(NoiseError, match=told):
        check_signal(SplitHalf(0.05, 336), "9 runs", "More.")
    with pytest.raises(NoiseError, match="no rank correlation over 16 heads"):
        check_signal(SplitHalf(math.nan, 16), "9 runs", "More.")
