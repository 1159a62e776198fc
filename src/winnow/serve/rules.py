"""Rules for an answer: the functions that it may call, and the schema that it follows without a call."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

Schema = Mapping[str, Any]
"""A JSON schema."""
ANY_OBJECT: Schema = {"type": "object"}
Special = Mapping[str, int]
"""Tokens that are no text to a grammar, by name."""
_EXACT = 1 << 53
"""The largest integer up to which float64 has all."""
SPACE = r"[\x20\x0A\x0D\x09]{1,40}"
"""Space within JSON: any, but no model goes on with it for ever."""
ESCAPES = r"nrbtf\""
"""Letters behind a backslash. With u, a key that a schema names could be spelled in another way, and have any value."""


@dataclass(frozen=True)
class Rules:
    """The rules of an answer that may call tools."""

    functions: Mapping[str, Schema]
    """Functions that may be called, by name, with the schemas of their arguments."""
    forced: bool = False
    """True if the answer is calls alone."""
    once: bool = False
    """True if a forced call is the only one."""
    answer: Schema | None = None
    """The schema of an answer without calls; None for any text."""

    @property
    def free(self) -> bool:
        """True if the answer may be any text, with calls in it."""
        return not self.forced and self.answer is None


class InexactError(ValueError):
    """A schema has a number that llguidance would take for another one."""


def written(schema: Schema) -> str:
    """A schema as llguidance takes it. The way in which JSON is written is no request's to choose.

    Raises InexactError for an integer that float64, in which llguidance computes, does not hold.
    """
    for number in _integers(schema):
        if abs(number) > _EXACT and (abs(number) > sys.float_info.max or int(float(number)) != number):
            raise InexactError(f"{shown(number)} is not exact in float64; use a string")
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": SPACE, "json_allowed_escapes": ESCAPES}})


def _integers(schema: Schema) -> Iterator[int]:
    """All integers in a schema, however deep they lie."""
    left: list[Any] = [schema]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
        elif isinstance(value, int):
            yield value
