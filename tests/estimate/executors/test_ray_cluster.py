"""A Ray cluster: the same numbers, whatever is lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.items import BROKEN, ITEMS, Playing, here
from support.processes import environment
from winnow.estimate.errors import ExecutorError
from winnow.estimate.executors.base import BASELINE, Item
from winnow.estimate.executors.ray_cluster import RayExecutor


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ExecutorError, match=r"winnow-kv\[ray\]"):
        RayExecutor(Playing(tmp_path), workers=1)


class Unwilling(SimpleNamespace):
    """A Ray that starts nobody."""

    def __init__(self) -> None:
        errors = {name: type(name, (Exception,), {}) for name in ERRORS}
        super().__init__(started=0, exceptions=SimpleNamespace(**errors))

    def is_initialized(self) -> bool:
        return True

    def put(self, value: object) -> object:
        return value

    def remote(self, **_: object) -> Any:
        return lambda _: SimpleNamespace(remote=self.start)

    def start(self, _: object) -> Any:
        self.started += 1
        number = self.started
        return SimpleNamespace(ready=SimpleNamespace(remote=lambda: number))

    def wait(self, answers: list[int], **_: object) -> tuple[list[int], list[int]]:
        return answers[:1], answers[1:]

    def get(self, _: int) -> object:
        raise self.exceptions.ActorUnschedulableError("The actor is not schedulable:\nno such interpreter")

    def kill(self, _: object) -> None:
        pass


class Full(Unwilling):
    """A Ray whose memory monitor kills the first workers that get an item."""

    def __init__(self, kills: int) -> None:
        super().__init__()
        self.kills = kills

    def remote(self, **_: object) -> Any:
        return lambda evaluator: SimpleNamespace(remote=lambda recipe: self.actor(evaluator(recipe)))

    def actor(self, made: Any) -> Any:
        self.started += 1
        return SimpleNamespace(
            ready=SimpleNamespace(remote=lambda: Answer(made.ready)),
            evaluate=SimpleNamespace(remote=lambda item: Answer(lambda: self.evaluate(made, item))),
        )

    def evaluate(self, made: Any, item: Item) -> Any:
        if self.kills:
            self.kills -= 1
            raise self.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.")
        return made.evaluate(item)

    def get(self, answer: Any) -> object:
        return answer.give()


class Colorful(Full):
    """A Ray that says a traceback where a worker raised."""

    def get(self, answer: Any) -> object:
        try:
            return answer.give()
        except ValueError as problem:
            told = type("RayTaskError(ValueError)", (self.exceptions.RayTaskError, ValueError), {"cause": problem})
            raise told("\x1b[36mray::Evaluator.evaluate()\x1b[39m (pid=1)\nValueError: no such batch") from None


class Answer:
    """An answer to come."""

    def __init__(self, give: Any) -> None:
        self.give = give


ERRORS = ("RayActorError", "NodeDiedError", "ActorUnschedulableError", "OutOfMemoryError", "RayTaskError")


@pytest.fixture
def cluster() -> Any:
    """Three nodes: one for the driver, two with room for a worker each."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    # Who answers late is alive; a node that was removed refuses to be asked, which is noticed as before.
    patient = {"health_check_timeout_ms": 120_000, "worker_register_timeout_seconds": 600}
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": patient},
    )
    made.nodes = [made.add_node(num_cpus=1) for _ in range(2)]
    # What is defined here has to be found by the actors.
    found = environment(Path(__file__).parents[2])
    there = {"env_vars": {name: found[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS")}}
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
        with pytest.raises(ValueError, match=r"^no such batch$"):
            list(executor.run([BROKEN]))


def test_workers_that_ray_gives_up_are_started_again_and_then_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A Ray that is none says of every actor that it cannot be scheduled."""
    ray = Unwilling()
    monkeypatch.setitem(__import__("sys").modules, "ray", ray)
    with (
        RayExecutor(Playing(tmp_path), workers=2) as executor,
        pytest.raises(ExecutorError, match=r"The workers do not start\. .* no such interpreter"),
    ):
        list(executor.run(ITEMS))
    assert ray.started == 2 * 3 + 1


def test_workers_that_the_memory_monitor_kills_are_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = Full(kills=2)
    monkeypatch.setitem(__import__("sys").modules, "ray", ray)
    with RayExecutor(Playing(tmp_path), workers=1) as executor:
        assert dict(executor.run(ITEMS)) == here(tmp_path)
    assert ray.started == 3
    monkeypatch.setitem(__import__("sys").modules, "ray", Full(kills=3))
    with (
        RayExecutor(Playing(tmp_path), workers=1) as executor,
        pytest.raises(ExecutorError, match=r"3 workers were lost at example 0, .*low on memory"),
    ):
        list(executor.run([Item(BASELINE, 0)]))


def test_an_error_of_a_worker_says_its_own_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", Colorful(kills=0))
    with RayExecutor(Playing(tmp_path), workers=1) as executor, pytest.raises(ValueError, match=r"^no such batch$"):
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
