"""Items one after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from winnow.estimate.executors.base import Done, Executor, Item, V, Worker


class LocalExecutor(Executor[V]):
    """Calls a worker."""

    def __init__(self, worker: Worker[V]) -> None:
        self._worker = worker

    @property
    def starting(self) -> int:
        return 0

    def run(self, items: Sequence[Item]) -> Iterator[Done[V]]:
        for item in items:
            yield Done(item, self._worker(item))
