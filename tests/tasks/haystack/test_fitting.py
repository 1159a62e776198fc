"""The largest count that fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from winnow.tasks.haystack.fitting import Pieces, largest_fitting


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=400),
    st.integers(0, 6000),
    st.integers(0, 5),
    st.floats(0.1, 100),
    st.booleans(),
)
def test_the_count_fits_and_one_more_does_not(steps, limit, fewest, each, bounded):
    """Whatever the sizes: zero steps, jumps and wrong guesses."""
    sizes = [0]
    for step in steps:
        sizes.append(sizes[-1] + step)
    measured = []

    def size(count):
        measured.append(count)
        assert fewest <= count <= most
        return sizes[count] if count < len(sizes) else sizes[-1] + 7 * (count - len(sizes) + 1)

    most = min(max(fewest, len(sizes) - 1) if bounded else 10**9, fewest + limit)
    found = largest_fitting(size, limit, Pieces(fewest, each, most if bounded else None))
    tries = len(measured)
    if found is None:
        assert size(fewest) > limit
        return
    assert size(found) <= limit
    assert found == most or size(found + 1) > limit
    assert len(set(measured[:tries])) == tries


def test_sizes_that_never_grow_come_to_an_end():
    assert largest_fitting(lambda count: 3, 500, Pieces(5, 20)) == 505


@given(st.integers(100, 10**6), st.floats(1, 200), st.integers(0, 1000))
def test_even_sizes_take_a_handful_of_measurements(limit, each, start):
    measured = []

    def size(count):
        measured.append(count)
        return start + int(count * each)

    largest_fitting(size, limit, Pieces(0, 1.2 * each))
    assert len(measured) <= 9
