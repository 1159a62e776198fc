"""Times of prompts and tokens in two engines, as records of a journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal

from winnow.estimate.journal import Journal
from winnow.estimate.records import MOST, RecordKind
from winnow.typed import Between, Sized

Engine = Literal["llama.cpp", "OpenVINO", "winnow"]
What = Literal["token", "prompt"]
FILE = "file"
"""Name of the weights that stay as the GGUF file has them."""
_Count = Annotated[int, Between(0, MOST)]


@dataclass(frozen=True)
class Subject:
    """A piece of work whose time is taken."""

    what: What
    engine: Engine
    cache: str
    weights: str
    """The form in which the engine holds them: a type of torch, or FILE for the blocks of the GGUF file."""
    threads: int
    depth: int
    """Tokens of the prompt."""
    turn: str
    """The round in which it was measured; "0" for a prompt."""


@dataclass(frozen=True)
class Measured(Subject):
    """The times that were taken of a subject."""

    ms: list[float]
    """Milliseconds: of a prompt, or of a token as the mean of a repetition."""
    cache_bytes: int
    """Keys and values with all that belongs to them; 0 with a prompt."""
    weight_bytes: int

    @property
    def subject(self) -> Subject:
        """The piece of work."""
        return Subject(*(getattr(self, name) for name in _SUBJECT))


_SUBJECT = tuple(field.name for field in fields(Subject))
_TYPES: dict[str, Any] = {
    "what": What,
    "engine": Engine,
    "cache": str,
    "weights": str,
    "threads": Annotated[int, Between(1, MOST)],
    "depth": _Count,
    "turn": str,
    "ms": Annotated[list[Annotated[float, Between(0, MOST)]], Sized(1)],
    "cache_bytes": Annotated[int, Between(0, 2**63)],
    "weight_bytes": Annotated[int, Between(0, 2**63)],
}
RECORDS = RecordKind(Measured, _TYPES, _SUBJECT)


class Times:
    """All that was measured, in a journal."""

    def __init__(self, journal: Journal) -> None:
        """Raises JournalError, naming the line, for a record that is none."""
        self._journal = journal
        self._known = {each.subject: each for each in journal.read(RECORDS)}

    def add(self, measured: Measured) -> None:
        """Adds to them; on the disk when this returns."""
        self._journal.append(asdict(measured))
        self._known[measured.subject] = measured

    def missing(self, subjects: Iterable[Subject]) -> list[Subject]:
        """Those that were not measured yet."""
        return [subject for subject in subjects if subject not in self._known]

    def all(self) -> Sequence[Measured]:
        """In the order in which they were measured."""
        return list(self._known.values())
