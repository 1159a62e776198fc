"""Haystacks, and needles between their sentences."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.estimate.errors import NeedleError
from winnow.estimate.needle.haystack import (
    ProseHaystack,
    TaskHaystack,
    insertion_point,
    with_needle,
)


@given(st.integers(0, 30), st.floats(0, 1), st.integers(0, 10**6))
def test_needles_go_between_sentences(count, depth, seed):
    rng = random.Random(seed)
    sentences = ["".join(rng.choices("abc ", k=rng.randint(1, 30))) + "." for _ in range(count)]
    before = insertion_point(sentences, depth)
    text, start = with_needle(sentences, "NEEDLE.", before)
    assert text[start:].startswith("NEEDLE.")
    assert text == " ".join([*sentences[:before], "NEEDLE.", *sentences[before:]])
    whole = len(" ".join([*sentences, ""]))
    assert start <= depth * whole + 1e-6
    if before < count:
        assert start + len(sentences[before]) + 1 > depth * whole


def test_the_extremes_are_before_and_after_everything():
    sentences = ["One.", "Two two two.", "Three."]
    assert [insertion_point(sentences, depth) for depth in (0, 1)] == [0, 3]
    assert with_needle(sentences, "N.", 0) == ("N. One. Two two two. Three.", 0)
    assert with_needle(sentences, "N.", 3) == ("One. Two two two. Three. N.", 25)
    assert with_needle([], "N.", 0) == ("N.", 0)
    for depth in (-0.1, 1.1):
        with pytest.raises(NeedleError, match="between 0"):
            insertion_point(sentences, depth)


def test_a_haystack_begins_alike_at_every_length():
    for haystack in (ProseHaystack(3), TaskHaystack(3)):
        longest = haystack.sentences(3000, frozenset())
        shorter = haystack.sentences(500, frozenset())
        assert longest[: len(shorter)] == shorter
        assert len(set(longest)) > 0.9 * len(longest)
        assert type(haystack)(4).sentences(500, frozenset()) != shorter
