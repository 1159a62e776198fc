"""Values of the knobs."""

from __future__ import annotations

import pytest

import winnow
from winnow.estimate.errors import TuneError
from winnow.estimate.tune.knobs import KNOBS, Tunable


def test_values_are_those_of_the_papers_and_small_ones_for_few_heads():
    assert KNOBS[Tunable.ER].values(16) == (1.005, 1.01, 1.1, 1.2, 1.5, 2, 5, 10)
    assert KNOBS[Tunable.COKV].values(256) == (1, 5, 10, 15, 20, 30, 40)
    assert KNOBS[Tunable.COKV].values(16) == (1, 2, 3, 4, 5, 6, 8, 10, 15)
    assert KNOBS[Tunable.COKV].values(5) == (1, 2, 3, 4)


def test_values_are_read_in_their_order_and_once():
    assert KNOBS[Tunable.R].read("2, 1.2,2") == (2, 1.2)
    with pytest.raises(TuneError, match="'x' is not a list of values of beta"):
        KNOBS[Tunable.R].read("1.2,x")
    with pytest.raises(TuneError, match=r"'1.5' is not a list of values of alpha: give whole numbers"):
        KNOBS[Tunable.COKV].read("1.5")
    with pytest.raises(TuneError, match="alpha = 16 leaves no head: the model has 16"):
        KNOBS[Tunable.COKV].check((1, 16), 16)


def test_defaults_are_the_methods_own():
    for method, knob in KNOBS.items():
        assert getattr(winnow.method(str(method), 64).allocator, knob.parameter) == knob.default
