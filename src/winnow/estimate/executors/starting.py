"""Patience with workers that start: slow is not lost, as long as some node could run one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from winnow.estimate.errors import ExecutorError

Tell = Callable[[str], None]
"""Shows a line to the user."""

TELL_SECONDS = 30.0
"""Between two lines on what is waited for."""


class Patience:
    """The wait for a first worker, from its beginning on."""

    def __init__(
        self, wanted: Mapping[str, float], seconds: float, tell: Tell, clock: Callable[[], float] = monotonic
    ) -> None:
        """wanted: what a worker takes of a node. seconds: how long to wait for a node that has as much."""
        self._wanted = wanted
        self._seconds = seconds
        self._tell = tell
        self._clock = clock
        self._begin = self._hope = self._told = clock()

    def look(self, nodes: Sequence[Mapping[str, Any]], starting: int) -> None:
        """Looks at the cluster's nodes, as ray.nodes lists them; starting: how many workers are.

        Raises ExecutorError where no living node has had room for a worker for too long.
        """
        now = self._clock()
        fitting = sum(self._fits(node) for node in nodes)
        if fitting:
            self._hope = now
        elif now - self._hope >= self._seconds:
            raise ExecutorError(
                f"No worker could be started in {self._seconds:g} seconds: the cluster has no node with room for one "
                f"({self._needs()}). Finished work is kept."
            )
        if now - self._told >= TELL_SECONDS:
            self._told = now
            self._tell(f"{self._waits(fitting, starting, now)} ({now - self._begin:.0f} seconds so far).")

    def _fits(self, node: Mapping[str, Any]) -> bool:
        has = node.get("Resources", {})
        return bool(node.get("Alive")) and all(has.get(name, 0) >= count for name, count in self._wanted.items())

    def _waits(self, fitting: int, starting: int, now: float) -> str:
        if not fitting:
            left = self._seconds - (now - self._hope)
            return f"Waiting for a node with room for a worker ({self._needs()}), {left:.0f} seconds more"
        nodes = "1 node" if fitting == 1 else f"{fitting} nodes"
        return f"Waiting for Ray to start {starting} worker{'' if starting == 1 else 's'}; {nodes} can run one"

    def _needs(self) -> str:
        return ", ".join(f"{count:g} {name}" for name, count in self._wanted.items())
