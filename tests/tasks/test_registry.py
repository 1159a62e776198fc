"""Benchmarks by name."""

from __future__ import annotations

import pytest

from winnow.tasks.benchmark import UnknownBenchmark
from winnow.tasks.protocols import protocols
from winnow.tasks.registry import benchmark, benchmarks


def test_every_benchmark_has_the_name_that_it_is_found_by():
    assert all(benchmark(each.name) is each for each in benchmarks())
    assert len({each.name for each in benchmarks()}) == len(benchmarks())


def test_every_benchmark_says_what_it_is():
    for each in benchmarks():
        assert each.summary
        assert each.source
        assert each.tasks
        assert all(each.tasks.values())


def test_protocols_are_for_benchmarks_that_there_are():
    names = {each.name for each in benchmarks()}
    assert {name for each in protocols() for name in each.benchmarks} <= names


def test_a_name_that_is_none_is_told_what_there_is():
    with pytest.raises(UnknownBenchmark, match="did you mean 'longbench'"):
        benchmark("longbensh")
