"""Judgment of generated answers."""

from __future__ import annotations

import pytest

from winnow.estimate.needle.examples import NeedleExample
from winnow.estimate.needle.judging import is_right, rouge1_recall, token_f1
from winnow.estimate.needle.settings import NeedleKind


def test_what_counts_as_right():
    assert rouge1_recall("eat warm rolls and sing", "eat warm rolls") == 1.0
    assert rouge1_recall("Eat rolls.", "eat warm rolls on steps") == 0.4
    assert token_f1("the red boat", "a red boat") == 1.0
    assert token_f1("red", "red boat here now") == pytest.approx(0.4)
    assert token_f1("", "red") == token_f1("the", "a") == 0.0
    example = NeedleExample("n", "n", "q", "plum", restates=True)
    for kind in NeedleKind:
        assert is_right(kind, example, "is bob, the favorite fruit of bob is plum")
        assert not is_right(kind, example, "is bob, the favorite fruit of bob is fig")
        assert not is_right(kind, example, "")
    half = NeedleExample("n", "n", "q", "one two three four")
    assert not is_right(NeedleKind.R, half, "one two and a lot more")  # exactly one half is not above it
    assert is_right(NeedleKind.R, half, "one two three and a lot more that would spoil an F1 of words like these")
    assert not is_right(NeedleKind.ER, half, "one two three and a lot more that would spoil an F1 of words like these")
