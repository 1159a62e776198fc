"""Lengths of pieces by made-up times: what a piece takes is a function of its length and of the tokens before it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.serve.pace import Pace

LEAST = 64
Cost = Callable[[int, int], float]
"""Seconds of a piece of so many tokens behind so many."""


def pieces(pace: Pace, cost: Cost, read: int = 0) -> Iterator[tuple[int, float]]:
    """Lengths and seconds of the pieces of an endless prompt."""
    while True:
        tokens = pace.tokens
        seconds = cost(tokens, read)
        yield tokens, seconds
        pace.took(tokens, seconds)
        read += tokens


def first(count: int, pace: Pace, cost: Cost) -> list[tuple[int, float]]:
    """As many of them."""
    return list(itertools.islice(pieces(pace, cost), count))


@given(weights=st.floats(0, 0.15), token=st.floats(1e-5, 3e-3))
def test_pieces_take_nearly_as_long_as_they_may(weights: float, token: float) -> None:
    """With steady costs: weights are read once per piece, and every token costs the same."""
    found = first(60, Pace(0.2, LEAST), lambda tokens, _: weights + token * tokens)[-20:]
    assert all(tokens == LEAST or seconds <= 0.2 + 16 * token for tokens, seconds in found)
    # A longer one would take too long, or so would any.
    assert all(weights + token * (tokens + 32) > 0.9 * 0.2 for tokens, _ in found)


def test_pieces_get_shorter_as_the_text_before_them_gets_longer() -> None:
    """None takes much longer than it may, though every token costs more than the one before."""
    found = first(200, Pace(0.2, LEAST), lambda tokens, read: 0.05 + 4e-4 * tokens * (1 + read / 8_000))
    lengths = [tokens for tokens, _ in found]
    assert max(lengths) > 300
    assert lengths[-1] < 150
    assert max(seconds for _, seconds in found) < 0.22


def test_a_prompt_goes_on_at_the_pace_of_the_one_before() -> None:
    pace = Pace(0.2, LEAST)
    lengths = [tokens for tokens, _ in first(20, pace, lambda tokens, _: 0.05 + 4e-4 * tokens)]
    assert next(pieces(pace, lambda tokens, _: 0.0))[0] == lengths[-1] > 300


@pytest.mark.parametrize("slow", [2, 10, 1000])
def test_a_piece_that_was_slow_by_chance_costs_little(slow: float) -> None:
    hiccup = iter([1.0] * 20 + [slow] + [1.0] * 5)
    found = first(26, Pace(0.2, LEAST), lambda tokens, _: (0.05 + 4e-4 * tokens) * next(hiccup))
    lengths = [tokens for tokens, _ in found]
    usual = lengths[20]
    assert lengths[21] >= usual // 2 - 16
    assert min(lengths[23:]) >= usual - 32


def test_a_machine_that_became_slow_is_noticed() -> None:
    speed = iter([1.0] * 20 + [6.0] * 10)
    found = first(30, Pace(0.2, LEAST), lambda tokens, _: 4e-4 * tokens * next(speed))
    assert max(seconds for _, seconds in found[24:]) < 0.24


def test_a_piece_that_was_cut_short_tells_nothing() -> None:
    """The few tokens up to the end of a start that prompts share take as long as many."""
    pace = Pace(0.2, LEAST)
    first(20, pace, lambda tokens, _: 0.05 + 4e-4 * tokens)
    before = pace.tokens
    for seconds in (0.06, 3.0):
        pace.took(before - 1, seconds)
        assert pace.tokens == before


def test_pieces_that_cannot_be_short_enough_are_the_least() -> None:
    assert {tokens for tokens, _ in first(20, Pace(0.2, LEAST), lambda tokens, _: 1 + 1e-2 * tokens)} == {LEAST}
    assert {tokens for tokens, _ in first(20, Pace(0.0, 50), lambda tokens, _: 0.0)} == {50}


@pytest.mark.parametrize(("longest", "seconds"), [(0.2, 0.0), (1e12, 5.0), (math.inf, 5.0)])
def test_pieces_that_could_be_of_any_length_grow_twofold(longest: float, seconds: float) -> None:
    """Also where a clock tells of no time at all."""
    lengths = [tokens for tokens, _ in first(10, Pace(longest, LEAST), lambda tokens, _: seconds)]
    assert lengths == [LEAST << number for number in range(10)]


@given(st.floats(0, 1e9), st.integers(1, 200), st.lists(st.floats(0, 1e9), max_size=50))
def test_whatever_the_times_there_is_a_next_piece(longest: float, least: int, times: list[float]) -> None:
    pace = Pace(longest, least)
    for seconds in times:
        before = pace.tokens
        pace.took(before, seconds)
        assert least <= pace.tokens <= max(2 * before, before + 16)
        assert pace.tokens == least or pace.tokens % 16 == 0
