"""Parameters of scorers and allocators: their meaning beside their default, and checks for their values."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from dataclasses import fields
from typing import Any, NamedTuple

from winnow.errors import MethodError

SLACK = 1e-9
"""Added to a share that is rounded down, taken from one that is rounded up: decimal fractions are not exact in binary,
and 0.29 of 100 is 29."""


class Parameter(NamedTuple):
    """A parameter of a method or part, which a user may set."""

    name: str
    default: object
    meaning: str
    """One line on what it does."""


def meaning(text: str) -> dict[str, str]:
    """Metadata of a dataclass field that a user may set by name: one line on what it does."""
    return {"meaning": text}


def parameters_of(part: Any) -> tuple[Parameter, ...]:
    """The parameters of a part (a dataclass instance), each with the value it has there as its default.

    In the order in which a composed name takes them: a subclass's own before those that it shares with others.
    """
    offered = sorted((f for f in fields(part) if "meaning" in f.metadata), key=lambda f: bool(f.kw_only))
    return tuple(Parameter(f.name, getattr(part, f.name), f.metadata["meaning"]) for f in offered)


def differences(before: Any, after: Any) -> dict[str, Any]:
    """The parameters that two parts of one class do not have in common, with their values in the second."""
    pairs = zip(parameters_of(before), parameters_of(after), strict=True)
    return {new.name: new.default for old, new in pairs if old.default != new.default}


def check_count(owner: object, name: str, least: int, most: int | None = None) -> None:
    """Raise MethodError unless the attribute is an int of at least `least`, and of at most `most`."""
    value = getattr(owner, name)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"between {least:,} and {most:,}"
        raise MethodError(f"{type(owner).__name__}: {name} must be a whole number {allowed}, not {value!r}.")


def check_odd(owner: object, name: str) -> None:
    """Raise MethodError unless the attribute is an odd int of at least 1."""
    check_count(owner, name, 1)
    value = getattr(owner, name)
    if value % 2 == 0:
        raise MethodError(f"{type(owner).__name__}: {name} must be odd, not {value}; use {value + 1}.")


def check_number(owner: object, name: str, low: float, high: float = math.inf) -> None:
    """Raise MethodError unless the attribute is a finite number in [low, high]."""
    value = getattr(owner, name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) <= sys.float_info.max or not low <= value <= high:
        allowed = f"of at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise MethodError(f"{type(owner).__name__}: {name} must be a number {allowed}, not {value!r}.")


def check_choice(owner: object, name: str, choices: Collection[object]) -> None:
    """Raise MethodError unless the attribute is one of `choices`."""
    value = getattr(owner, name)
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise MethodError(f"{type(owner).__name__}: {name} must be one of {listed}, not {value!r}.")
