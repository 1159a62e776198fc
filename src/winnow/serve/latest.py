"""Latest values, known by what texts begin with, up to a number of them and of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class _Held(Protocol):
    @property
    def nbytes(self) -> int: ...


Beginning = TypeVar("Beginning", str, tuple[int, ...])
Value = TypeVar("Value", bound=_Held)


class Latest(Generic[Beginning, Value]):
    """The latest values, by their kind and by a beginning; the one that was not used for longest goes first."""

    def __init__(self, most: int, most_bytes: int | None) -> None:
        """most: values that are held; 0 for none. most_bytes: bytes of all, at most; None for any number."""
        self._most = most
        self._most_bytes = most_bytes
        self._held: OrderedDict[tuple[Hashable, Beginning], Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of all; those that several share count for each."""
        return sum(each.nbytes for each in self._held.values())

    def fits(self, nbytes: int) -> bool:
        """True if a value of so many bytes is held, with others let go of if need be."""
        return self._most > 0 and (self._most_bytes is None or nbytes <= self._most_bytes)

    def keep(self, kind: Hashable, beginning: Beginning, value: Value) -> None:
        """Holds a value from now on, in the place of one of the same beginning; one that does not fit is let go of."""
        if not self.fits(value.nbytes):
            return
        self._held[kind, beginning] = value
        self._held.move_to_end((kind, beginning))
        while len(self._held) > self._most or not self.fits(self.nbytes):
            self._held.popitem(last=False)

    def longest(self, kind: Hashable, has: Callable[[Beginning], bool]) -> Value | None:
        """The value with the longest beginning of a kind that a text has; None where there is none."""
        known = [beginning for its, beginning in self._held if its == kind and has(beginning)]
        if not known:
            return None
        key = kind, max(known, key=len)
        self._held.move_to_end(key)
        return self._held[key]

    def forget(self) -> None:
        """Lets go of all."""
        self._held.clear()
