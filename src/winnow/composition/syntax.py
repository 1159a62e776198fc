"""The syntax of method strings: `part(argument, key=value)+part(...) @ budget`, read and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from winnow.errors import MethodError
from winnow.heads import HeadScores, QueryCenters

Value = bool | int | float | str | HeadScores | QueryCenters
"""A parameter's value; head scores as an object come by keyword only, in a name they are a file."""

_PART = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:\(([^()]*)\))?\s*")
_WORDS: dict[str, Value] = {"true": True, "false": False}
_FORM = 'write "part(argument, key=value)+part(...)", for example "snapkv(window=16)+ada(0.3)"'


class Call(NamedTuple):
    """One part of a method string and the arguments it was given."""

    name: str
    positional: tuple[Value, ...]
    named: Mapping[str, Value]


class MethodString(NamedTuple):
    """A method string, taken apart."""

    text: str
    """Its parts as they were written, without the budget."""
    calls: tuple[Call, ...]
    budget: str | None
    """The text after "@"."""


def parse(text: str) -> MethodString:
    """The parts of a method string in their order, and its budget. Raises MethodError where the form is not kept."""
    parts, at, budget = text.partition("@")
    parts = parts.strip()
    return MethodString(parts, tuple(_calls(parts)), budget.strip() if at else None)


def parse_setting(text: str) -> tuple[str, Value]:
    """Name and value of one "name=value". Raises MethodError for anything else."""
    call = _call("set", text, text)
    if call.positional or len(call.named) != 1:
        raise MethodError(f'{text!r} is not of the form "name=value".')
    ((name, value),) = call.named.items()
    return name, value


def format_call(name: str, arguments: Mapping[str, Value]) -> str:
    """The canonical text of a part: arguments by name, none without parentheses."""
    listed = ", ".join(f"{key}={_literal(value)}" for key, value in arguments.items())
    return f"{name}({listed})" if listed else name


def _calls(text: str) -> list[Call]:
    calls, position = [], 0
    while True:
        match = _PART.match(text, position)
        if match is None:
            raise MethodError(f"Cannot read the method {text!r} from {text[position:]!r} on: {_FORM}.")
        calls.append(_call(match[1].lower(), match[2] or "", text))
        position = match.end()
        if position == len(text):
            return calls
        if text[position] != "+":
            raise MethodError(f"Cannot read the method {text!r} from {text[position:]!r} on: {_FORM}.")
        position += 1


def _call(name: str, arguments: str, text: str) -> Call:
    positional: list[Value] = []
    named: dict[str, Value] = {}
    for argument in arguments.split(",") if arguments.strip() else []:
        key, equals, value = argument.rpartition("=")
        key, value = key.strip(), value.strip()
        if not value or (equals and not key.isidentifier()) or (named and not equals):
            raise MethodError(f"Cannot read the argument {argument.strip()!r} in {text!r}: {_FORM}.")
        if key in named:
            raise MethodError(f"{name} got {key!r} twice in {text!r}; keep one.")
        if equals:
            named[key] = _value(value)
        else:
            positional.append(_value(value))
    return Call(name, tuple(positional), named)


def _value(text: str) -> Value:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
