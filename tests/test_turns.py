"""Parts of products: every pair of values by default, and everything in the slow run."""

from __future__ import annotations

from itertools import combinations, product
from typing import NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.turns import each_value, in_turn, one_in, one_of_each


@pytest.mark.parametrize(
    ("first", "second", "third"), [(6, 6, 6), (7, 8, 6), (9, 8, 4), (11, 3, 6), (5, 2, 5), (3, 4, 1)]
)
def test_every_pair_occurs_and_the_rest_is_slow(first: int, second: int, third: int) -> None:
    sizes = range(first), range(second), range(third)
    by_default: set[tuple[int, int, int]] = set()
    slow: set[tuple[int, int, int]] = set()
    for parameters in in_turn(*sizes):
        one, other, values = parameters.values
        assert values
        (slow if parameters.marks else by_default).update((one, other, value) for value in values)
    assert not by_default & slow
    assert by_default | slow == set(product(*sizes))
    for places in combinations(range(3), 2):
        pairs = {tuple(case[at] for at in places) for case in by_default}
        assert pairs == set(product(*(sizes[at] for at in places)))
    assert len(by_default) <= first * second * -(-third // second)


def test_products_too_small_for_every_pair_are_refused() -> None:
    with pytest.raises(AssertionError, match="would be missing"):
        in_turn("ab", "abc", "abc")


@pytest.mark.parametrize("sizes", [(3,), (1, 4), (5, 2), (3, 4, 7), (2, 2, 2), (6, 3)])
def test_every_value_occurs_and_the_rest_is_slow(sizes: tuple[int, ...]) -> None:
    cases = each_value(*map(range, sizes))
    assert [case.values for case in cases] == list(product(*map(range, sizes)))
    by_default = [case.values for case in cases if not case.marks]
    assert len(by_default) == max(sizes)
    assert [set(values) for values in zip(*by_default, strict=True)] == [set(range(size)) for size in sizes]


def test_values_meet_as_many_others_as_there_are_turns_for() -> None:
    by_default = [case.values for case in each_value(range(7), range(2), range(3)) if not case.marks]
    assert len({values[1:] for values in by_default}) == 6


@pytest.mark.parametrize("at", range(3))
def test_one_of_several_is_run_by_default(at: int) -> None:
    cases = one_in(3, range(8), at)
    assert [case for case in cases if isinstance(case, int)] == [*range(at, 8, 3)]
    assert [case if isinstance(case, int) else case.values[0] for case in cases] == [*range(8)]


class Item(NamedTuple):
    """A stand-in for a test of pytest."""

    nodeid: str


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, 20), max_size=9), st.integers(2, 5))
def test_every_test_has_one_of_several_of_its_parameters(tests: dict[str, int], count: int) -> None:
    items = [Item(f"{name}[{place}[x]]") for name, times in tests.items() for place in range(times)]
    chosen = [item.nodeid for item in one_of_each(cast("list[pytest.Item]", items), count)]
    assert len(set(chosen)) == len(chosen)
    for name, times in tests.items():
        places = [int(each.split("[")[1]) for each in chosen if each.startswith(f"{name}[")]
        assert places == [*range(places[0], times, count)]
        assert places[0] < count


def test_functions_without_parameters_are_all_run() -> None:
    items = [Item("a.py::test_one"), Item("a.py::test_other"), Item("b.py::test_one")]
    assert sorted(one_of_each(cast("list[pytest.Item]", items), 3)) == items
