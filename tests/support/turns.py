"""Parameters of which the default run has a part: every pair of values, every value, or one of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations, groupby, product
from typing import Any
from zlib import crc32

import pytest


def in_turn(first: Sequence[Any], second: Sequence[Any], third: Sequence[Any]) -> list[Any]:
    """Arguments of `parametrize` for three parameters, the last of which is a list of values: those to run.

    Beside each value of the first and each of the second one value of the third stands, or as few as it takes for
    every pair of values of two parameters to occur. The other values of the third are in the slow run.
    """
    count = len(third)
    assert len(first) >= count, "some pairs of the second and the third would be missing"
    found = []
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            chosen = {(i + each) % count for each in range(j, count, len(second)) or (j,)}
            parts = [[value for at, value in enumerate(third) if (at in chosen) == now] for now in (True, False)]
            found.append(pytest.param(one, other, parts[0], id=f"{one}-{other}"))
            if parts[1]:
                found.append(pytest.param(one, other, parts[1], id=f"{one}-{other}-others", marks=pytest.mark.slow))
    return found


def each_value(*axes: Sequence[Any]) -> list[Any]:
    """Arguments of `parametrize` for several parameters: all products of their values.

    As many are run by default as the longest list has values, each value in one of them at least; the others are in the
    slow run.
    """
    by_default = set(_turns([len(axis) for axis in axes]))
    found = []
    for places in product(*(range(len(axis)) for axis in axes)):
        values = [axis[place] for axis, place in zip(axes, places, strict=True)]
        found.append(pytest.param(*values, marks=() if places in by_default else pytest.mark.slow))
    return found


def one_in(count: int, values: Iterable[Any], at: int = 0) -> list[Any]:
    """Arguments of `parametrize`: of so many values in a row the one at a place by default, all in the slow run."""
    return [
        each if place % count == at else pytest.param(each, marks=pytest.mark.slow) for place, each in enumerate(values)
    ]


def one_of_each(items: Iterable[pytest.Item], count: int) -> Iterator[pytest.Item]:
    """Tests, each with one in so many of its parameters, at least one; other ones than the next test has.

    So a family that several tests are about is in some of them.
    """
    for name, group in groupby(sorted(items, key=_function), key=_function):
        some = list(group)
        yield from some[crc32(name.encode()) % min(count, len(some)) :: count]


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _turns(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Places in lists of these sizes: of each list the one that came least, and least beside those before it."""
    came: Counter[Any] = Counter()
    for _ in range(max(sizes)):
        chosen: list[tuple[int, int]] = []
        for number, size in enumerate(sizes):
            places = [(number, place) for place in range(size)]
            chosen.append(min(places, key=partial(_times, came, tuple(chosen))))
        came.update(chosen)
        came.update(combinations(chosen, 2))
        yield tuple(place for _, place in chosen)


def _times(came: Counter[Any], before: Sequence[tuple[int, int]], place: tuple[int, int]) -> tuple[int, int]:
    return came[place], sum(came[other, place] for other in before)
