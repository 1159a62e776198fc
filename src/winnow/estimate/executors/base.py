"""The interface of executors, and a queue that gives items to workers that know their example."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, TypeVar

V = TypeVar("V")
"""The result of an item."""
V_co = TypeVar("V_co", covariant=True)


class Item(NamedTuple):
    """One piece of work: a batch of it for one example, of all coalitions or of what else there is to evaluate."""

    batch: int
    """Below 0: `BASELINE`."""
    example: int

    def __str__(self) -> str:
        return f"example {self.example}" if self.batch == BASELINE else f"batch {self.batch} of example {self.example}"


BASELINE = -1
"""The number of a batch of two coalitions, all players and none, that every plan has besides its own."""

Worker = Callable[[Item], V]
"""A pure function of the item: the same result whenever and wherever it is called."""


class Done(NamedTuple, Generic[V]):
    """An item that was evaluated."""

    item: Item
    values: V


class Recipe(Protocol[V_co]):
    """Instructions for making a worker, in a form that can be sent to other processes and machines."""

    def prepare(self) -> Worker[V_co]:
        """Loads what the worker needs. Called once in every process."""


class Executor(ABC, Generic[V]):
    """Evaluates items, in any order. Used as a context: workers live from its beginning to its end."""

    workers: int = 1
    """Items that are evaluated at the same time."""

    @property
    def starting(self) -> int:
        """Workers that load what they need before their first item."""
        return self.workers

    @abstractmethod
    def run(self, items: Sequence[Item]) -> Iterator[Done[V]]:
        """Every item once, as they finish. Raises ExecutorError where no worker is left, and what a worker raises."""

    def close(self, at_once: bool) -> None:
        """Ends the workers; `at_once`: without waiting for items in flight."""

    def __enter__(self) -> Executor[V]:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close(at_once=kind is not None)


class Queue:
    """Items that wait. A worker gets items of examples that it has read already, if there are any.

    Reading an example is what is expensive the first time, so nobody starts on another's example without need.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self._waiting: dict[int, list[Item]] = {}
        for item in items:
            self._waiting.setdefault(item.example, []).append(item)
        for waiting in self._waiting.values():
            waiting.reverse()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self, known: set[int], known_to_others: set[int]) -> Item:
        """The next item for a worker that knows the examples `known`, which it then knows, too."""
        by_choice = (
            [example for example in self._waiting if example in known],
            [example for example in self._waiting if example not in known_to_others],
            list(self._waiting),
        )
        # The longest line first: it decides when everything is done. Of equal ones the one that was named first.
        candidates = next(choice for choice in by_choice if choice)
        example = max(candidates, key=lambda each: len(self._waiting[each]))
        item = self._waiting[example].pop()
        if not self._waiting[example]:
            del self._waiting[example]
        known.add(example)
        return item

    def put_back(self, item: Item) -> None:
        """An item whose worker was lost."""
        self._waiting.setdefault(item.example, []).append(item)
