"""A benchmark: what it is asked for, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from winnow.errors import WinnowError, closest
from winnow.tasks.example import Task


class BenchmarkError(WinnowError, ValueError):
    """A benchmark that does not exist, or whose texts are not there or cannot be used."""


class UnknownBenchmark(BenchmarkError):
    """No benchmark or protocol has this name."""


@dataclass(frozen=True)
class Request:
    """A wish: the tasks of a benchmark, their number, lengths and seed."""

    count_tokens: Callable[[str], int]
    """Tokens of a text, without special ones; lengths are counted by it."""
    tasks: tuple[str, ...] = ()
    """Names; none for all of them."""
    examples: int | None = None
    """Number for every task (and length); None: all, or as many as the benchmark's own default."""
    lengths: tuple[int, ...] = ()
    """Tokens of whole prompts, for benchmarks that are generated; none for their default."""
    seed: int = 0
    data: Path | None = None
    """Folder or file with the benchmark's texts; needed where they cannot be shipped."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by its name."""

    name: str
    summary: str
    """One line for lists."""
    source: str
    """The paper or page that defines it."""
    tasks: Mapping[str, str]
    """A line on every task, by its name."""
    load: Callable[[Request], list[Task]]
    """The tasks that were asked for, in the order of `tasks`. Raises BenchmarkError, naming what to do."""
    lengths: tuple[int, ...] = ()
    """Tokens of prompts where nobody asks for others; empty where its texts have their own lengths."""
    data: str = ""
    """Contents that the folder of texts must have, and their origin; empty where nothing is needed."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tasks whose mean papers print, by the name of that mean; every task counts the same."""


def asked_tasks(request: Request, benchmark: str, known: Iterable[str]) -> list[str]:
    """Names of the tasks that are asked for, in the order of those that there are.

    Raises BenchmarkError for a task that the benchmark does not have.
    """
    names = list(known)
    for name in request.tasks:
        if name not in names:
            raise BenchmarkError(f"{benchmark} has no task {name!r}: {closest(name, names)}")
    return [name for name in names if not request.tasks or name in request.tasks]
