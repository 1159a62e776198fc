"""Benchmarks and protocols fit each other: names, metrics, groups and published rows."""

from __future__ import annotations

import pytest

from winnow.metrics.registry import METRICS
from winnow.tasks.longbench.definition import TASKS as LONGBENCH_TASKS
from winnow.tasks.longbench.forms import judging
from winnow.tasks.loogle.benchmarks import HEADKV_TASKS
from winnow.tasks.loogle.benchmarks import TASKS as LOOGLE_TASKS
from winnow.tasks.protocol import Protocol
from winnow.tasks.protocols import protocols
from winnow.tasks.registry import benchmarks

BENCHMARKS = {each.name: each for each in benchmarks()}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_groups_are_of_tasks_that_there_are(name: str) -> None:
    each = BENCHMARKS[name]
    assert each.name == name
    for tasks in each.groups.values():
        assert set(tasks) <= set(each.tasks)
        assert len(set(tasks)) == len(tasks)


@pytest.mark.parametrize("each", protocols(), ids=lambda each: each.name)
def test_protocols_and_their_rows_are_of_tasks_that_there_are(each: Protocol) -> None:
    for name in each.benchmarks:
        known = set(BENCHMARKS[name].tasks)
        assert all(set(row) <= known for row in each.full_rows.values())


def test_metrics_of_tasks_exist() -> None:
    named = {judging(task).metric for task in LONGBENCH_TASKS}
    named |= {definition.metric for definition in (*LOOGLE_TASKS.values(), *HEADKV_TASKS.values())}
    assert named <= set(METRICS)
