"""The syntax of method strings: `part(argument, key=value)+part(...) @ budget`, read and written.

Names of files may have in them what else has a meaning, between quotes: `headkv-r2(scores='me@lab/a (1).safetensors')`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from winnow.errors import MethodError
from winnow.heads import HeadScores, QueryCenters

Value = bool | int | float | str | HeadScores | QueryCenters
"""A parameter's value; head scores as an object come by keyword only, in a name they are a file."""

# Where a value begins, so that an apostrophe in a name opens nothing; inside, the quote itself stands twice.
_QUOTED = r"""(?<![^(=,\s])(?:'(?>(?:[^']|'')*)'|"(?>(?:[^"]|"")*)")"""
# Nothing is tried again in another way: that would take exponential time. By atomic groups, as possessive repetition
# misses matches in Python before 3.11.5.
_PART = re.compile(rf"\s*([A-Za-z][\w-]*)\s*(?:\(((?>(?:{_QUOTED}|[^()])*))\))?\s*")
_MEANINGFUL = frozenset("@(),'\"")
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
    parts, *budget = (each.strip() for each in _split(text, "@", most=1))
    return MethodString(parts, tuple(_calls(parts)), budget[0] if budget else None)


def split_list(text: str) -> list[str]:
    """Method strings between commas: "full,snapkv(window=16, kernel=5)" are two. Empty ones are left out."""
    found: list[str] = []
    start = depth = 0
    for mark in re.finditer(rf"{_QUOTED}|[(),]", text):
        depth += {"(": 1, ")": -1}.get(mark[0], 0)
        if mark[0] == "," and depth <= 0:
            found.append(text[start : mark.start()])
            start = mark.end()
    return [each.strip() for each in (*found, text[start:]) if each.strip()]


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
    for argument in _split(arguments, ",") if arguments.strip() else []:
        *keys, value = (each.strip() for each in _split(argument, "=", most=1))
        key = keys[0] if keys else ""
        if not value or (keys and not key.isidentifier()) or (named and not keys):
            raise MethodError(f"Cannot read the argument {argument.strip()!r} in {text!r}: {_FORM}.")
        if key in named:
            raise MethodError(f"{name} got {key!r} twice in {text!r}; keep one.")
        if keys:
            named[key] = _value(value)
        else:
            positional.append(_value(value))
    return Call(name, tuple(positional), named)


def _split(text: str, mark: str, most: int | None = None) -> list[str]:
    """The text between marks that stand outside of quotes; only the first `most` of them count."""
    found: list[str] = []
    start = 0
    for each in re.finditer(rf"{_QUOTED}|{re.escape(mark)}", text):
        if each[0] == mark and len(found) != most:
            found.append(text[start : each.start()])
            start = each.end()
    return [*found, text[start:]]


def _value(text: str) -> Value:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text[1:-1].replace(text[0] * 2, text[0]) if re.fullmatch(_QUOTED, text) else text


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    text = str(value)
    if text and not _MEANINGFUL & set(text) and _value(text.strip()) == text:
        return text
    quote = '"' if "'" in text and '"' not in text else "'"
    return f"{quote}{text.replace(quote, quote * 2)}{quote}"
