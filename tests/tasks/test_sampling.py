"""Samples of examples, and the tasks that a request names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.tasks.benchmark import BenchmarkError, Request, asked_tasks
from winnow.tasks.example import Example
from winnow.tasks.sampling import sampled

EXAMPLES = tuple(Example(str(index), "context", "question", ("answer",)) for index in range(30))


def names(examples: tuple[Example, ...]) -> set[str]:
    return {each.name for each in examples}


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 5))
def test_a_larger_sample_holds_every_smaller_one_in_order(first: int, second: int, seed: int) -> None:
    small, large = (sampled(EXAMPLES, count, seed) for count in sorted((first, second)))
    assert names(small) <= names(large)
    assert len(large) == min(max(first, second), len(EXAMPLES))
    assert list(large) == [each for each in EXAMPLES if each in large]


def test_a_sample_depends_on_seed_and_names_only() -> None:
    assert sampled(EXAMPLES, 5, seed=0) != sampled(EXAMPLES, 5, seed=1)
    gone = EXAMPLES[7].name
    others = [each for each in EXAMPLES if each.name != gone]
    assert names(sampled(others, 10, seed=0)) >= names(sampled(EXAMPLES, 10, seed=0)) - {gone}
    assert sampled(EXAMPLES, None, seed=3) == EXAMPLES


def test_tasks_come_in_the_order_of_the_benchmark() -> None:
    known = ["one", "two", "three"]
    assert asked_tasks(Request(len), "made", known) == known
    assert asked_tasks(Request(len, tasks=("three", "one")), "made", known) == ["one", "three"]
    with pytest.raises(BenchmarkError, match=r"made has no task 'tree': did you mean 'three'\?"):
        asked_tasks(Request(len, tasks=("tree",)), "made", known)
