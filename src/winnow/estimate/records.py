"""Records of journals: the type of every field, and the fields that name the piece of work.

What a record may hold depends on the plan: a batch of 32 pairs has 64 utilities, and no example comes after the last.
So each kind is made from the plan's numbers. Records of another form are refused by their line when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

from winnow.typed import Between, OneOf, Sized, TypedError, read_fields

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Record = dict[str, Any]
"""Plain JSON values by the names of fields."""

Rejected = Literal["rejected"]
REJECTED: Rejected = "rejected"
"""Stands for the scores of a run whose answer was wrong."""

MOST = 2**31 - 1
"""The largest number that a count may be, where the plan does not say."""


class Records(Protocol[R_co]):
    """Those of one plan."""

    def read(self, record: Record) -> R_co:
        """The record, checked. Raises TypedError."""

    def results(self, record: Record) -> Iterator[tuple[str, object]]:
        """Every piece of work of a record that was checked, in words, with its result as plain JSON values."""


@dataclass(frozen=True)
class RecordKind(Generic[R]):
    """Records of one kind, made from the numbers of a plan."""

    make: Callable[..., R]
    """A dataclass of the fields."""
    types: Mapping[str, Any]
    """Types of the fields, as `winnow.typed` reads them."""
    work: tuple[str, ...]
    """Fields that name the piece of work; the others are its result."""
    parts: str | None = None
    """A field with named results, each of a piece of work of its own."""
    fault: Callable[[R], str | None] = lambda _: None
    """A relation between fields that does not hold, in words."""

    def read(self, record: Record) -> R:
        found = self.make(**read_fields(self.types, record))
        if fault := self.fault(found):
            raise TypedError(fault)
        return found

    def results(self, record: Record) -> Iterator[tuple[str, object]]:
        named = ", ".join(f"{name} {record[name]}" for name in self.work)
        if self.parts is None:
            yield named, {name: value for name, value in record.items() if name not in self.work}
        else:
            yield from ((f"{named}, {part}", value) for part, value in record[self.parts].items())


_Utility = Annotated[float, Between(0, 1)]


@dataclass(frozen=True)
class CoalitionRecord:
    """A batch of coalitions that answered one validation example."""

    batch: int
    example: int
    u: list[float]
    """The utility of every coalition."""


@dataclass(frozen=True)
class BaselineRecord:
    """The utility of all heads, and of none, for one validation example."""

    example: int
    all_heads: float
    no_heads: float


@dataclass(frozen=True)
class CoalitionRecords:
    """Records of one estimation: baselines of its examples, and batches of coalitions."""

    baselines: RecordKind[BaselineRecord]
    batches: RecordKind[CoalitionRecord]

    def read(self, record: Record) -> BaselineRecord | CoalitionRecord:
        return self._kind(record).read(record)

    def results(self, record: Record) -> Iterator[tuple[str, object]]:
        return self._kind(record).results(record)

    def _kind(self, record: Record) -> RecordKind[BaselineRecord] | RecordKind[CoalitionRecord]:
        return self.baselines if "all_heads" in record else self.batches


def coalition_records(batches: int, coalitions: int, examples: int) -> CoalitionRecords:
    """Records of so many batches of coalitions, each on so many examples. A utility is a share of right answers."""
    example: Any = Annotated[int, Between(0, examples - 1)]
    batch = {
        "batch": Annotated[int, Between(0, batches - 1)],
        "example": example,
        "u": Annotated[list[_Utility], Sized(coalitions, coalitions)],
    }
    baseline = {"example": example, "all_heads": _Utility, "no_heads": _Utility}
    return CoalitionRecords(
        RecordKind(BaselineRecord, baseline, ("example",)), RecordKind(CoalitionRecord, batch, ("batch", "example"))
    )


@dataclass(frozen=True)
class NeedleRecord:
    """A needle in a haystack that the model was asked for."""

    kind: str
    example: int
    length: int
    depth: float
    prompt_tokens: int
    answer: str
    scores: list[list[float]] | str
    """[L, Hq], or "rejected" where the answer is wrong."""


def needle_records(
    kind: str, examples: int, lengths: Sequence[int], depths: Sequence[float], steps: int, shape: tuple[int, int]
) -> RecordKind[NeedleRecord]:
    """Records of runs. steps: of an answer at most, of which each scores 1 at most; shape: layers and query heads."""
    layers, heads = shape
    # Weights are shares of 1 up to rounding.
    score = Annotated[float, Between(0, 1.001 * steps)]
    types = {
        "kind": Annotated[str, OneOf((kind,))],
        "example": Annotated[int, Between(0, examples - 1)],
        "length": Annotated[Any, OneOf(tuple(lengths))],
        "depth": Annotated[Any, OneOf(tuple(depths))],
        "prompt_tokens": Annotated[int, Between(1, MOST)],
        "answer": str,
        "scores": Rejected | Annotated[list[Annotated[list[score], Sized(heads, heads)]], Sized(layers, layers)],
    }
    return RecordKind(NeedleRecord, types, ("kind", "example", "length", "depth"))


@dataclass(frozen=True)
class AnswerRecord:
    """The questions about a document, answered under several settings."""

    split: str
    document: int
    right: Mapping[str, Sequence[float]]
    """By setting: for each question, whether its answer was right, or how far."""


def answer_records(questions: Mapping[str, Sequence[int]], shares: bool = False) -> RecordKind[AnswerRecord]:
    """Records of answers.

    questions: for each split, how many there are about each document. shares: True for metrics that have more values
    than right and wrong.
    """

    def fault(record: AnswerRecord) -> str | None:
        asked = questions[record.split]
        if record.document >= len(asked):
            return f"document must be a whole number from 0 to {len(asked) - 1}, not {record.document}"
        for setting, right in record.right.items():
            if len(right) != asked[record.document]:
                return f"right has {len(right)} answers for {setting}, not {asked[record.document]}"
        return None

    worth: Any = list[_Utility] if shares else list[bool]
    types = {
        "split": Annotated[str, OneOf(tuple(questions))],
        "document": Annotated[int, Between(0, MOST)],
        "right": Annotated[dict[str, Annotated[worth, Sized(1)]], Sized(1)],
    }
    return RecordKind(AnswerRecord, types, ("split", "document"), "right", fault)
