"""Time left by the work that is done, in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.clocks import SetClock
from winnow.commands.pace import Pace, clock_time


def test_the_time_left_goes_by_work_and_not_by_steps():
    clock = SetClock()
    pace = Pace(clock, total=3, work=1 + 4 + 16)
    assert pace.left is None
    clock.wait(10)
    pace.advance(work=1)
    assert pace.left == pytest.approx(200)
    clock.wait(40)
    assert pace.left == pytest.approx(160)
    pace.advance(work=4)
    assert pace.left == pytest.approx(160)
    assert pace.told() == "2 of 3, 0:50 so far, about 2:40 left"
    clock.wait(500)
    assert pace.left == 0


def test_steps_of_a_journal_are_done_and_measure_nothing():
    clock = SetClock()
    pace = Pace(clock, total=100)
    pace.skip(90)
    assert pace.left is None
    assert pace.told() == "90 of 100, 0:00 so far"
    clock.wait(6)
    pace.advance(2)
    assert pace.left == pytest.approx(24)


def test_units_have_a_speed():
    clock = SetClock()
    pace = Pace(clock, total=50_000, unit="tokens")
    pace.skip(10_000)
    assert pace.counted() == "10,000 of 50,000 tokens"
    clock.wait(10)
    pace.advance(3_500)
    assert pace.counted() == "13,500 of 50,000 tokens, 350 a second"
    clock.wait(10_000)
    pace.advance(1)
    assert pace.counted().endswith(", 0.3 a second")


def test_the_start_of_workers_is_no_work():
    """Two workers load for a minute and then do a step of five seconds each, side by side."""
    clock = SetClock()
    pace = Pace(clock, total=14, unit="tokens", starting=2)
    pace.skip(4)
    clock.wait(60 + 5)
    for _ in range(2):
        pace.advance()
        assert (pace.left, pace.speed) == (None, None)
    clock.wait(5)
    pace.advance()
    assert pace.left == pytest.approx(7 * 5 / 2)
    assert pace.speed == pytest.approx(2 / 5)
    pace.advance()
    assert pace.left == pytest.approx(6 * 5 / 3)
    assert pace.elapsed == 70


def test_work_without_a_total():
    clock = SetClock()
    pace = Pace(clock)
    clock.wait(61)
    assert pace.told() == "1:01 so far"
    pace.advance()
    assert pace.told() == "1, 1:01 so far"
    pace.set(2, 4)
    assert pace.told() == "2 of 4, 1:01 so far, about 1:01 left"


@given(st.lists(st.floats(0.1, 1e4), min_size=2, max_size=20), st.floats(1e-3, 1e3), st.data())
def test_an_even_pace_is_foretold_exactly(works, seconds, data):
    """Whatever the steps are, and however many a journal has."""
    known = data.draw(st.integers(0, len(works) - 2))
    clock = SetClock()
    pace = Pace(clock, total=len(works), work=sum(works))
    for work in works[:known]:
        pace.skip(1, work)
    for count, work in enumerate(works[known:-1], start=known + 1):
        clock.wait(work * seconds)
        pace.advance(work=work)
        assert pace.left == pytest.approx(sum(works[count:]) * seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.4, "0:00"), (59.6, "1:00"), (75, "1:15"), (3599.5, "1:00:00"), (3675, "1:01:15")]
)
def test_times_are_written_as_clocks_do(seconds, told):
    assert clock_time(seconds) == told
