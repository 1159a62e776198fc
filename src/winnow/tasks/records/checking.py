"""Records read as the fields that a benchmark's files have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from winnow.tasks.benchmark import BenchmarkError
from winnow.tasks.records.reading import Record
from winnow.typed import TypedError, read_as

T = TypeVar("T")


def checked(declared: type[T], record: Record) -> T:
    """The fields of a record that a dataclass declares; others, which copies of data sets add, do not matter.

    Raises BenchmarkError, with file and line, for a field that is missing or of another type.
    """
    names = {each.name for each in fields(declared)}  # type: ignore[arg-type]
    try:
        return read_as(declared, {name: value for name, value in record.fields.items() if name in names})
    except TypedError as problem:
        raise BenchmarkError(f"{record.place}: {problem}.") from None


def with_unique(found: Sequence[Record], key: Callable[[Record], Any], what: str) -> None:
    """Raises BenchmarkError for two records with the same key, which names examples."""
    places: dict[Any, str] = {}
    for record in found:
        before = places.setdefault(key(record), record.place)
        if before != record.place:
            raise BenchmarkError(f"{record.place}: it has the same {what} as {before}: {key(record)}.")
