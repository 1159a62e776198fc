"""Forms of plain JSON values that are read strictly: every one says what belongs in a place, and refuses the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

_SHOWN = 40


class Misfit(ValueError):
    """A value that does not have its form; the text says which value, and what belongs there."""


class Form(Protocol):
    """The form of a value."""

    def check(self, name: str, value: object) -> None:
        """Raises Misfit. name: of the place, for the text."""


@dataclass(frozen=True)
class Whole:
    """A whole number in a range; true and false are none."""

    least: int
    most: int

    def check(self, name: str, value: object) -> None:
        if type(value) is not int or not self.least <= value <= self.most:
            raise _misfit(name, f"a whole number from {self.least:,} to {self.most:,}", value)


@dataclass(frozen=True)
class Real:
    """A number in a range."""

    least: float
    most: float

    def check(self, name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.least <= value <= self.most:
            raise _misfit(name, f"a number from {self.least:g} to {self.most:g}", value)


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[str | int | float | None, ...]

    def check(self, name: str, value: object) -> None:
        if isinstance(value, bool) or value not in self.values:
            told = ", ".join(map(short, self.values[:6])) + (", …" if len(self.values) > 6 else "")
            raise _misfit(name, told if len(self.values) == 1 else f"one of {told}", value)


@dataclass(frozen=True)
class Text:
    """Any text."""

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, str):
            raise _misfit(name, "a text", value)


@dataclass(frozen=True)
class Truth:
    """True or false."""

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, bool):
            raise _misfit(name, "true or false", value)


@dataclass(frozen=True)
class Listed:
    """A list of values of one form; count: how many, or any number but none."""

    of: Form
    count: int | None = None

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, list) or not value or self.count not in (None, len(value)):
            raise _misfit(name, f"a list of {self.count or 'some'} values", value)
        for place, each in enumerate(value):
            self.of.check(f"{name}[{place}]", each)


@dataclass(frozen=True)
class Named:
    """Values of one form under names of their own, at least one."""

    of: Form

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, dict) or not value:
            raise _misfit(name, "an object with names", value)
        for key, each in value.items():
            self.of.check(f"{name}[{short(key)}]", each)


@dataclass(frozen=True)
class AnyObject:
    """An object, whatever is in it."""

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, dict):
            raise _misfit(name, "an object", value)


@dataclass(frozen=True)
class OrText:
    """One certain text, or a value of a form."""

    text: str
    otherwise: Form

    def check(self, name: str, value: object) -> None:
        if value != self.text:
            self.otherwise.check(name, value)


def check_fields(forms: Mapping[str, Form], record: Mapping[str, object]) -> None:
    """Raises Misfit unless a record has exactly these fields, each of its form."""
    for name in forms:
        if name not in record:
            raise Misfit(f'there is no "{name}"')
    for name in record:
        if name not in forms:
            raise Misfit(f"no {short(name)} belongs there, only {', '.join(forms)}")
    for name, form in forms.items():
        form.check(name, record[name])


def short(value: object) -> str:
    """A plain JSON value for an error text, cut off where it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _misfit(name: str, wanted: str, value: object) -> Misfit:
    return Misfit(f"{name} must be {wanted}, not {short(value)}")
