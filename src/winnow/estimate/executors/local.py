"""Items one after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from winnow.estimate.executors.base import Done, Executor, Item, Worker


class LocalExecutor(Executor):
    """Calls a worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def run(self, items: Sequence[Item]) -> Iterator[Done]:
        for item in items:
            yield Done(item, self._worker(item))
