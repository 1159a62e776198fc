"""Other engines as a race sees them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from measured import Engine
from winnow.errors import JsonError, WinnowError
from winnow.strict_json import parse
from winnow.typed import TypedError, read_as


class PeerError(WinnowError):
    """Another engine that cannot be built or run, or whose results cannot be read."""


@dataclass(frozen=True)
class Printed:
    """One test of a benchmark: the fields that are read of all that it prints, named as llama-bench names them."""

    model_size: int
    """Bytes of the weights."""
    n_threads: int
    n_gen: int
    samples_ns: list[int]
    """Nanoseconds of every repetition, which is a prompt or `n_gen` tokens."""

    @property
    def ms(self) -> list[float]:
        """Milliseconds of a prompt, or of a token."""
        return [sample / 1e6 / max(self.n_gen, 1) for sample in self.samples_ns]


class Rival(Protocol):
    """A kind of cache of another engine, on a model."""

    @property
    def engine(self) -> Engine: ...

    @property
    def name(self) -> str:
        """The cache's name in tables, one per engine."""

    def nbytes(self, numbers: int) -> int:
        """Bytes of a cache of so many numbers; 0 where the engine does not tell."""

    def tokens(self, depth: int, threads: Sequence[int], steps: int, repeats: int) -> list[Printed]:
        """Times of `steps` tokens after `depth` others, for every number of threads. Raises PeerError."""

    def prompt(self, tokens: int, threads: int) -> Printed:
        """The time of one prompt. Raises PeerError."""


def run_benchmark(command: Sequence[str], title: str) -> list[Printed]:
    """The tests that a program prints as JSON. Raises PeerError where it fails; title: its name in error texts."""
    try:
        ended = subprocess.run(list(command), capture_output=True, text=True, check=False)
    except OSError as problem:
        raise PeerError(f"Cannot run {command[0]}: {problem.strerror}.") from None
    if ended.returncode:
        said = ended.stderr.strip().splitlines()
        raise PeerError(
            f"{title} ended with {ended.returncode}: {said[-1] if said else 'it said nothing'}\n"
            f"Repeat it by hand with {' '.join(command)}"
        )
    return read_printed(ended.stdout, title)


def read_printed(text: str, title: str) -> list[Printed]:
    """The tests in the JSON that a benchmark prints. Raises PeerError for anything else."""
    try:
        tests = read_as(list[dict[str, Any]], parse(text))
        return [
            read_as(Printed, {field.name: test[field.name] for field in fields(Printed) if field.name in test})
            for test in tests
        ]
    except (JsonError, TypedError) as problem:
        raise PeerError(f"{title} printed something else than expected: {problem}. Is it another version?") from None
