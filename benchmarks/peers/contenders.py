"""Contenders of a race: kinds of caches on a model, in Winnow or in a program that answers line by line."""

from __future__ import annotations

import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from measured import FILE, Engine
from winnow.errors import JsonError, WinnowError
from winnow.strict_json import parse
from winnow.typed import TypedError, read_as

REST = 0.5
"""Seconds before a turn, in which the threads of another engine stop waiting for more work at full speed."""


def rest() -> None:
    """Waits until a turn may begin."""
    time.sleep(REST)


class PeerError(WinnowError):
    """Another engine that cannot be built or run, or whose answers cannot be read."""


class Contender(Protocol):
    """A kind of cache on a model that has read a prompt, of which it keeps every depth of the race."""

    @property
    def engine(self) -> Engine: ...

    @property
    def cache(self) -> str:
        """The cache's name in tables, one per engine."""

    @property
    def weights(self) -> str:
        """The form in which the engine holds the weights."""

    @property
    def weight_bytes(self) -> int: ...

    def cache_bytes(self, depth: int) -> int:
        """Bytes of keys and values and of all that belongs to them; 0 where the engine does not tell."""

    def prompt(self, depth: int) -> float:
        """Milliseconds that the first `depth` tokens of the prompt took, with as many threads as it ever has."""

    def token(self, depth: int, threads: int, steps: int) -> float:
        """Mean milliseconds of `steps` tokens after the first `depth`, after one that is not timed."""


class Answering:
    """A program that answers every line with one of JSON; it is started by the first question.

    Its first line, before any question, holds the bytes of the model's weights.
    """

    def __init__(self, command: Sequence[str], title: str) -> None:
        """title: the program's name in error texts."""
        self._command, self._title = list(command), title

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the weights that it has loaded. Raises PeerError."""
        return self._read("weight_bytes", int)

    def ask(self, *words: object) -> list[float]:
        """The milliseconds that it answers with. Raises PeerError where it ends or says something else."""
        _ = self.weight_bytes  # its first line, which comes before all answers
        question = self._process.stdin
        assert question is not None
        try:
            print(*words, file=question, flush=True)
        except BrokenPipeError:
            raise self._ended() from None
        return self._read("ms", list[float])

    def close(self) -> None:
        """Ends the program, if it runs."""
        if process := self.__dict__.pop("_process", None):
            process.terminate()
            process.communicate()
            self._said.close()

    @cached_property
    def _process(self) -> subprocess.Popen[str]:
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  (a pipe fills up)
        pipe = subprocess.PIPE
        try:
            return subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=self._said, text=True)
        except OSError as problem:
            raise PeerError(f"Cannot run {self._command[0]}: {problem.strerror}.") from None

    def _read(self, name: str, kind: Any) -> Any:
        """The value of a name in its next line."""
        answers = self._process.stdout
        assert answers is not None
        if not (line := answers.readline()):
            raise self._ended()
        try:
            return read_as(kind, read_as(dict[str, Any], parse(line)).get(name))
        except (JsonError, TypedError) as problem:
            raise PeerError(
                f"{self._title} answered something else than expected: {problem}. Is it another version?"
            ) from None

    def _ended(self) -> PeerError:
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read().strip().splitlines()
        return PeerError(
            f"{self._title} ended with {code}: {said[-1] if said else 'it said nothing'}\n"
            f"Repeat it by hand with {' '.join(self._command)}"
        )


class Rival(ABC):
    """A contender that is a program of another engine, with the weights of the model's file."""

    @cached_property
    @abstractmethod
    def answering(self) -> Answering:
        """The program, which starts with the first question."""

    @property
    def weights(self) -> str:
        return FILE

    @property
    def weight_bytes(self) -> int:
        return self.answering.weight_bytes

    def close(self) -> None:
        """Ends the program."""
        self.answering.close()
