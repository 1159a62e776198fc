"""Lengths and depths of runs."""

from __future__ import annotations

import pytest

from winnow.estimate.errors import NeedleError
from winnow.estimate.needle.settings import (
    NeedleKind,
    Settings,
    default_context,
    default_depths,
    spread_depths,
    spread_lengths,
)


def test_lengths_and_depths_are_even():
    assert spread_lengths(2048) == (0, 512, 1024, 1536, 2048)
    assert (spread_lengths(1), spread_lengths(3)) == ((0, 1), (0, 1, 2, 3))
    assert spread_depths(5) == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert spread_depths(1) == (0.5,)
    for wrong in (lambda: spread_lengths(9, 1), lambda: spread_depths(0)):
        with pytest.raises(NeedleError, match="At least"):
            wrong()


def test_a_cpu_is_asked_for_less():
    assert (default_context(32_768, on_cpu=False), default_depths(on_cpu=False)) == (32_768, 10)
    assert (default_context(32_768, on_cpu=True), default_depths(on_cpu=True)) == (2_048, 5)
    assert default_context(512, on_cpu=True) == 512


def test_seeds_are_those_that_journals_are_read_with():
    for seed in (-(2**63), 2**63 - 1):
        assert Settings(NeedleKind.R, (0,), (0.5,), seed).seed == seed
    for seed in (-(2**63) - 1, 2**63):
        with pytest.raises(NeedleError, match="64 bits"):
            Settings(NeedleKind.R, (0,), (0.5,), seed)
