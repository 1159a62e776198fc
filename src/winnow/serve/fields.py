"""Values of a request's fields, checked: every refusal names its field."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any

from winnow.serve.refusals import Refused


def text(value: str, name: str) -> str:
    """A text for the model. Raises Refused for half of a surrogate pair, which JSON can say and no tokenizer reads."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise Refused(f"{name} has half of a character, {value[problem.start]!r}.", name) from None
    return value


def whole(given: Mapping[str, Any], name: str, least: int) -> int | None:
    """A whole number; None where none is given."""
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise Refused(f"{name} must be a whole number of at least {least}; it is {shown(value)}.", name)
    return value


def number(given: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    """A number; None where none is given."""
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise Refused(f"{name} must be a number from {least:g} to {most:g}.", name)
    return float(value)


def truth(given: Mapping[str, Any], name: str, otherwise: bool = False) -> bool:
    """True or false."""
    value = given.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, bool):
        raise Refused(f"{name} must be true or false.", name)
    return value
