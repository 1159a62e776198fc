"""Judgment of generated answers."""

from __future__ import annotations

from winnow.estimate.needle.examples import NeedleExample
from winnow.estimate.needle.judging import is_right, rouge1_recall
from winnow.estimate.needle.settings import NeedleKind


def test_what_counts_as_right():
    assert rouge1_recall("eat warm rolls and sing", "eat warm rolls") == 1.0
    assert rouge1_recall("Eat rolls.", "eat warm rolls on steps") == 0.4
    # Words count as often as they were said.
    assert rouge1_recall("rolls", "rolls rolls") == 0.5
    assert rouge1_recall("rolls and rolls", "rolls rolls") == 1.0
    example = NeedleExample("n", "n", "q", "plum", restates=True)
    for kind in NeedleKind:
        assert is_right(kind, example, "is bob, the favorite fruit of bob is plum")
        assert not is_right(kind, example, "is bob, the favorite fruit of bob is fig")
        assert not is_right(kind, example, "")
    half = NeedleExample("n", "n", "q", "one two three four")
    assert not is_right(NeedleKind.R, half, "one two and a lot more")  # exactly one half is not above it
    assert is_right(NeedleKind.R, half, "one two three and a lot more that would spoil an F1 of words like these")
    assert not is_right(NeedleKind.ER, half, "one two three and a lot more that would spoil an F1 of words like these")
