"""Patience: slow is not lost, and lost is told."""

from __future__ import annotations

from typing import Any

import pytest

from winnow.estimate.errors import ExecutorError
from winnow.estimate.executors.starting import Patience


class Clock:
    """Seconds that the test decides about."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def node(alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "Resources": resources}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_node_that_could_run_a_worker_is_waited_for_without_end(clock: Clock) -> None:
    told: list[str] = []
    patience = Patience({"CPU": 1}, 120, told.append, clock)
    for _ in range(1000):
        clock.now += 2
        patience.look([node(), node(CPU=1), node(False, CPU=8)], starting=2)
    assert told[0] == "Waiting for Ray to start 2 workers; 1 node can run one (30 seconds so far)."
    assert len(told) == 2000 // 30


@pytest.mark.parametrize("nodes", [[], [node()], [node(CPU=1)], [node(False, CPU=2, GPU=1)]])
def test_no_such_node_is_told_in_time(clock: Clock, nodes: list[dict[str, Any]]) -> None:
    told: list[str] = []
    patience = Patience({"CPU": 2, "GPU": 1}, 50, told.append, clock)
    clock.now += 30
    patience.look(nodes, starting=1)
    assert told == ["Waiting for a node with room for a worker (2 CPU, 1 GPU), 20 seconds more (30 seconds so far)."]
    clock.now += 20
    with pytest.raises(ExecutorError, match=r"No worker could be started in 50 seconds: .*\(2 CPU, 1 GPU\)"):
        patience.look(nodes, starting=1)


def test_the_time_runs_anew_after_a_node_was_there(clock: Clock) -> None:
    patience = Patience({"CPU": 1}, 50, lambda _: None, clock)
    for nodes in ([], [node(CPU=1)], []):
        clock.now += 49
        patience.look(nodes, starting=1)
    clock.now += 49
    with pytest.raises(ExecutorError):
        patience.look([], starting=1)
