"""Who evaluates items changes nothing but the time: every item once, the same numbers, losses made good."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.run import run_sampled
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.cokv.settings import StopRule
from winnow.estimate.errors import ExecutorError
from winnow.estimate.executors.base import Item, Queue, Worker
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.executors.processes import ProcessExecutor
from winnow.estimate.executors.ray_cluster import RayExecutor

PLAN = Sampled(PlayerSplits(8, (2, 4), 0), pairs=8)
ITEMS = [Item(batch, example) for example in range(3) for batch in range(4)]
FATAL, BROKEN = Item(99, 0), Item(98, 0)


@dataclass(frozen=True)
class Playing:
    """A game for any process; `folder` remembers across processes which items killed their worker already."""

    folder: Path
    deadly: Item | None = None
    seconds: float = 0.0

    def prepare(self) -> Worker:
        (self.folder / f"worker-{os.getpid()}").touch()
        return self.play

    def play(self, item: Item) -> list[float]:
        if item == BROKEN:
            raise ValueError("no such batch")
        died = self.folder / "died"
        if item == FATAL or (item == self.deadly and not died.exists()):
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        weights = torch.arange(8, dtype=torch.float64) / 7 + item.example
        values: list[float] = (PLAN.coalitions(item.batch).double() @ weights).tolist()
        return values


def here(folder: Path) -> dict[Item, list[float]]:
    return dict(LocalExecutor(Playing(folder).prepare()).run(ITEMS))


def test_processes(tmp_path: Path) -> None:
    """One crew for all that has to be seen, because starting processes takes seconds."""
    expected = here(tmp_path)
    with ProcessExecutor(Playing(tmp_path, deadly=ITEMS[5]), workers=2) as executor:
        found = list(executor.run(ITEMS))
        assert sorted(done.item for done in found) == sorted(ITEMS)
        assert dict(found) == expected
        assert (tmp_path / "died").exists()
        # This process, the worker that was killed, and whoever did its work: the other one or the one in its place,
        # which may still be starting when all is done.
        assert len(list(tmp_path.glob("worker-*"))) >= 3
        same = run_sampled(PLAN, StopRule(64), executor, Ledger(3))
        assert torch.equal(
            same.values, run_sampled(PLAN, StopRule(64), LocalExecutor(Playing(tmp_path).play), Ledger(3)).values
        )
        assert list(executor.run([])) == []
        with pytest.raises(ValueError, match="no such batch"):
            list(executor.run([BROKEN]))
        with pytest.raises(ExecutorError, match="2 worker processes died at batch 99 of example 0"):
            list(executor.run([FATAL]))
    with pytest.raises(ExecutorError, match="at least 1"):
        ProcessExecutor(Playing(tmp_path), workers=0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), unique=True), st.integers(1, 4))
def test_every_item_goes_to_someone_once(pairs: list[tuple[int, int]], workers: int) -> None:
    items = [Item(*pair) for pair in pairs]
    queue, known = Queue(items), [set[int]() for _ in range(workers)]
    taken = []
    while queue:
        for mine in known:
            if queue:
                taken.append(queue.take(mine, set().union(*known)))
                assert taken[-1].example in mine
    assert sorted(taken) == sorted(items)


def test_examples_stay_with_who_has_read_them() -> None:
    queue = Queue([Item(batch, example) for example in range(4) for batch in range(10)])
    known: list[set[int]] = [set(), set()]
    while queue:
        for mine in known:
            if queue:
                queue.take(mine, known[0] | known[1])
    assert [len(mine) for mine in known] == [2, 2]
    assert not known[0] & known[1]


def test_a_lost_item_waits_again() -> None:
    queue = Queue(ITEMS[:1])
    item = queue.take(set(), set())
    assert not queue
    queue.put_back(item)
    assert queue.take(set(), set()) == item


# --- Ray -------------------------------------------------------------------------------------------------------


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ExecutorError, match=r"winnow-kv\[ray\]"):
        RayExecutor(Playing(tmp_path), workers=1)


@pytest.fixture
def cluster() -> Any:
    """Three nodes: one for the driver, two with room for a worker each."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.nodes = [made.add_node(num_cpus=1) for _ in range(2)]
    # What is defined here has to be found by the actors.
    there = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}}
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR", runtime_env=there)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
def test_ray_survives_the_loss_of_a_worker_and_of_a_node(cluster: Any, tmp_path: Path) -> None:
    expected = here(tmp_path)
    with RayExecutor(Playing(tmp_path, deadly=ITEMS[5], seconds=0.5), workers=2, start_seconds=120) as executor:
        found = []
        for number, done in enumerate(executor.run(ITEMS)):
            found.append(done)
            if number == 3:
                cluster.remove_node(cluster.nodes[0], allow_graceful=False)
        assert sorted(done.item for done in found) == sorted(ITEMS)
        assert dict(found) == expected
        assert (tmp_path / "died").exists()
        with pytest.raises(ValueError, match="no such batch"):
            list(executor.run([BROKEN]))


@pytest.mark.slow
def test_ray_tells_when_nobody_is_left(cluster: Any, tmp_path: Path) -> None:
    for node in cluster.nodes:
        cluster.remove_node(node)
    with (
        RayExecutor(Playing(tmp_path), workers=1, start_seconds=5) as executor,
        pytest.raises(ExecutorError, match="No worker could be started in 5 seconds"),
    ):
        list(executor.run(ITEMS))
