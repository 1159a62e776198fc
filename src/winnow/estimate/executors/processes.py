"""Items side by side, in processes of this machine that each load the model once."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from winnow.estimate.errors import ExecutorError
from winnow.estimate.executors.base import Done, Executor, Item, Queue, Recipe, V, Worker

_LOSSES = 2
"""Processes that an item may cost before it is held responsible."""

_worker: Worker[Any] | None = None
"""The worker of this process, where it is a worker's."""
_failure: Exception | None = None
"""The reason why there is none."""


class ProcessExecutor(Executor[V]):
    """A process per worker, started fresh ("spawn"), because a fork of a process that used threads may hang.

    A process that dies (killed, out of memory) is replaced, and its item evaluated again.
    """

    def __init__(self, recipe: Recipe[V] | Sequence[Recipe[V]], workers: int, threads: int | None = None) -> None:
        """recipe: of all workers, or one for each. threads: of torch in every process; without it the processes share
        this one's.

        Raises ExecutorError for fewer than one worker, and where the recipes cannot be written.
        """
        if workers < 1:
            raise ExecutorError(f"workers must be at least 1, not {workers}.")
        recipes = [*recipe] if isinstance(recipe, Sequence) else [recipe] * workers
        self._threads = threads or max(1, torch.get_num_threads() // workers)
        # In files: a recipe may hold all texts of a run, and a process takes what it is given only once it has started.
        self._folder = _temporary_folder()
        self._paths = _written(recipes, Path(self._folder.name))
        self.workers = workers
        # One pool for every process: a pool of several would choose by itself who gets an item.
        self._pools = [self._start(who) for who in range(workers)]
        self._known: list[set[int]] = [set() for _ in range(workers)]

    def run(self, items: Sequence[Item]) -> Iterator[Done[V]]:
        queue, losses = Queue(items), dict.fromkeys(items, 0)
        busy: dict[Future[V], tuple[int, Item]] = {}
        idle = list(range(self.workers))
        while queue or busy:
            while idle and queue:
                who = idle.pop(0)
                item = queue.take(self._known[who], set().union(*self._known))
                busy[self._submit(who, item)] = (who, item)
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                who, item = busy.pop(future)
                idle.append(who)
                try:
                    values = future.result()
                except BrokenProcessPool:
                    losses[item] += 1
                    self._replace(who, item, losses[item])
                    queue.put_back(item)
                else:
                    yield Done(item, values)

    def close(self, at_once: bool) -> None:
        if at_once:
            for pool in self._pools:
                _kill(pool)
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
        self._folder.cleanup()

    def _start(self, who: int) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(1, context, initializer=_prepare, initargs=(self._paths[who], self._threads))
        with _no_interrupts():
            # The first call starts the process.
            pool.submit(_nothing)
        return pool

    def _submit(self, who: int, item: Item) -> Future[V]:
        try:
            return self._pools[who].submit(_evaluate, item)
        except BrokenProcessPool:
            # It died while it had nothing to do, which is no item's fault.
            self._renew(who)
            return self._pools[who].submit(_evaluate, item)

    def _replace(self, who: int, item: Item, losses: int) -> None:
        if losses >= _LOSSES:
            raise ExecutorError(
                f"{losses} worker processes died at {item}, probably for lack of memory: use fewer --workers, or let "
                "them do less at once (--batch, --chunk). Finished work is kept."
            )
        self._renew(who)

    def _renew(self, who: int) -> None:
        self._pools[who].shutdown(wait=False)
        self._pools[who], self._known[who] = self._start(who), set()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Processes started inside never hear Ctrl-C, which reaches all of a terminal: who keeps the journal ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _temporary_folder() -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix="winnow-")
    except OSError as problem:
        raise _cannot_write(None, problem) from None


def _written(recipes: Sequence[Recipe[Any]], folder: Path) -> list[Path]:
    """The file of every recipe, each of which is written once."""
    paths: dict[int, Path] = {}
    for recipe in recipes:
        if id(recipe) not in paths:
            paths[id(recipe)] = path = folder / f"recipe-{len(paths)}"
            try:
                path.write_bytes(pickle.dumps(recipe))
            except OSError as problem:
                raise _cannot_write(folder, problem) from None
    return [paths[id(recipe)] for recipe in recipes]


def _cannot_write(folder: Path | None, problem: OSError) -> ExecutorError:
    place = f"to {folder}" if folder is not None else "a temporary folder"
    return ExecutorError(
        f"Cannot write {place} what the worker processes need: {problem.strerror}. Free some space, or set another "
        "folder for temporary files (TMPDIR)."
    )


def _prepare(path: Path, threads: int) -> None:
    """The start of a new process, with a recipe's file.

    What fails here is kept for its first item: a pool tells nobody, and just breaks.
    """
    global _worker, _failure
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        _worker = pickle.loads(path.read_bytes()).prepare()
    except Exception as problem:
        _failure = problem


def _end_with_parent() -> None:
    """Ends this process when the one that started it is gone, however that ended: nobody else would ever end it."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "started by another process"
    wait_for([parent.sentinel])
    os._exit(1)


def _nothing() -> None:
    """The first task of a process."""


def _evaluate(item: Item) -> Any:
    try:
        if _failure is not None:
            raise _failure
        assert _worker is not None, "prepared before the first item"
        return _worker(item)
    except Exception as problem:
        if _is_sendable(problem):
            raise
        raise RuntimeError(f"{type(problem).__name__}: {problem}") from None


def _is_sendable(problem: Exception) -> bool:
    """True where pickle brings a problem over; of one that it does not the pool would say that the process died."""
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:
        return False
    return True


def _kill(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.kill()
