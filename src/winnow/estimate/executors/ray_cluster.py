"""Items on a Ray cluster: an actor per worker, each of which loads the model once.

An actor whose process or node is lost is replaced wherever the cluster has room, and its item is evaluated again. Ray
is imported when it is used: pip install "winnow-kv[ray]".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from winnow.estimate.errors import ExecutorError
from winnow.estimate.executors.base import Done, Executor, Item, Queue, Recipe, V, Worker
from winnow.estimate.executors.starting import Patience, Tell

START_SECONDS = 600.0
"""With no worker running, wait so long for a node that could run one."""

_LOOK_SECONDS = 2.0
"""Between two looks at the cluster, with no worker running."""

_LOSSES = 3
"""Actors that an item may cost before it is held responsible."""


class Evaluator:
    """The code that runs in an actor."""

    def __init__(self, recipe: Recipe[Any]) -> None:
        self._worker: Worker[Any] = recipe.prepare()

    def ready(self) -> bool:
        """Answers when the model is loaded."""
        return True

    def evaluate(self, item: Item) -> Any:
        """The result of an item."""
        return self._worker(item)


@dataclass(eq=False)
class _Member:
    """An actor with the item it evaluates; without one, it is starting."""

    actor: Any
    item: Item | None = None
    known: set[int] = field(default_factory=set)


class RayExecutor(Executor[V]):
    """Actors of the cluster that RAY_ADDRESS or ray.init names; without one, Ray starts a cluster of this machine."""

    def __init__(
        self,
        recipe: Recipe[V],
        workers: int,
        cpus: float = 1,
        gpus: float = 0,
        start_seconds: float = START_SECONDS,
        tell: Tell = lambda _: None,
    ) -> None:
        """cpus, gpus: what every worker takes of the cluster. tell: shows the user what is waited for.

        Raises ExecutorError without Ray, without a cluster, and for fewer than one worker.
        """
        if workers < 1:
            raise ExecutorError(f"workers must be at least 1, not {workers}.")
        self._ray = _import_ray()
        self._own = not self._ray.is_initialized()
        if self._own:
            _connect(self._ray)
        self.workers = workers
        self._wanted = {name: count for name, count in (("CPU", cpus), ("GPU", gpus)) if count}
        self._start_seconds = start_seconds
        self._tell = tell
        self._class = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0)(Evaluator)
        self._recipe = self._ray.put(recipe)
        errors = self._ray.exceptions
        # Ray's memory monitor, which kills a worker before the node's memory is full, has an error of its own.
        self._losses = (
            errors.RayActorError,
            errors.NodeDiedError,
            errors.ActorUnschedulableError,
            errors.OutOfMemoryError,
        )
        self._failed_starts = 0
        self._idle: list[_Member] = []
        # Answer to come -> who gives it.
        self._busy: dict[Any, _Member] = {}
        for _ in range(workers):
            self._start()

    def run(self, items: Sequence[Item]) -> Iterator[Done[V]]:
        queue, losses = Queue(items), dict.fromkeys(items, 0)
        open_items = len(items)
        while open_items:
            while self._idle and queue:
                self._give(self._idle.pop(0), queue)
            answer = self._next_answer()
            member = self._busy.pop(answer)
            item, member.item = member.item, None
            try:
                values = self._ray.get(answer)
            except self._losses as problem:
                if item is None:
                    self._check_starts(problem)
                else:
                    losses[item] += 1
                    _check_losses(item, losses[item], problem)
                    queue.put_back(item)
                self._start()
                continue
            except self._ray.exceptions.RayTaskError as problem:
                # Ray's own error is of the cause's class, too, but says a traceback in place of its words.
                raise problem.cause from problem
            self._idle.append(member)
            self._failed_starts = 0
            if item is not None:
                open_items -= 1
                yield Done(item, values)

    def close(self, at_once: bool) -> None:
        for member in [*self._idle, *self._busy.values()]:
            self._ray.kill(member.actor)
        self._idle, self._busy = [], {}
        if self._own:
            self._ray.shutdown()

    def _start(self) -> None:
        member = _Member(self._class.remote(self._recipe))
        self._busy[member.actor.ready.remote()] = member

    def _check_starts(self, problem: Exception) -> None:
        """An actor died before its model was loaded. Raises ExecutorError where that happens again and again."""
        self._failed_starts += 1
        if self._failed_starts >= _LOSSES * self.workers:
            *_, reason = str(problem).strip().splitlines()
            raise ExecutorError(
                f"The workers do not start. Every node needs Winnow, and the model in the same place: {reason}"
            )

    def _give(self, member: _Member, queue: Queue) -> None:
        others = set().union(*(each.known for each in [*self._idle, *self._busy.values()]))
        member.item = queue.take(member.known, others | member.known)
        self._busy[member.actor.evaluate.remote(member.item)] = member

    def _next_answer(self) -> Any:
        """The first answer of any actor.

        Raises ExecutorError where all have been starting for long, and no node has been there that could run one.
        """
        waiting = list(self._busy)
        if any(member.item is not None for member in self._busy.values()):
            return self._ray.wait(waiting, num_returns=1)[0][0]
        patience = Patience(self._wanted, self._start_seconds, self._tell)
        while not (answers := self._ray.wait(waiting, num_returns=1, timeout=_LOOK_SECONDS)[0]):
            patience.look(self._ray.nodes(), len(waiting))
        return answers[0]


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ExecutorError(
            'Ray is not installed: pip install "winnow-kv[ray]", or use --executor processes.'
        ) from None
    return ray


def _connect(ray: Any) -> None:
    # Of a cluster that is started here: on a busy machine a process may need minutes until it answers Ray, which by
    # default ends it after one and gives up after five.
    os.environ.setdefault("RAY_worker_register_timeout_seconds", f"{START_SECONDS:.0f}")
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (ConnectionError, ValueError, RuntimeError) as problem:
        raise ExecutorError(f"There is no Ray cluster: {problem}") from None


def _check_losses(item: Item, losses: int, problem: Exception) -> None:
    if losses >= _LOSSES:
        raise ExecutorError(
            f"{losses} workers were lost at {item}, probably for lack of memory: use a smaller --batch. "
            f"Finished work is kept. ({problem})"
        ) from None
