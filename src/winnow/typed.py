"""Plain values, as files give them, read as the types that a dataclass declares.

A schema is the dataclass itself: its fields are the names that a file must have, and no others; their types say what is
there. `Annotated[int, Between(0, 9)]` adds a range, `Longest` a length. What does not fit is refused with its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
KIND = "kind"
"""Name under which a value says which of several dataclasses it is; they carry it as `name_in_files`."""


class Between(NamedTuple):
    """A range of numbers, both ends included."""

    least: float
    most: float


class Longest(NamedTuple):
    """A number of entries, looked at before any of them."""

    entries: int


class TypedError(ValueError):
    """A value that is not of the declared type; the text begins with its place."""


def read_as(declared: type[T], value: object, place: str) -> T:
    """A plain value (of JSON, tensors where a type says so) as the declared type, a dataclass as a rule.

    place: where the value comes from, for error texts.

    Raises:
        TypedError: names the place of what is missing, unknown, of another type or out of range.
    """
    found: T = _read(declared, value, place)
    return found


def _read(declared: Any, value: object, place: str) -> Any:
    origin = get_origin(declared)
    if declared is Any:
        return value
    if is_dataclass(declared):
        return _dataclass(declared, value, place)
    if origin is None:
        return _plain(declared, value, place)
    return _GENERIC[origin](get_args(declared), value, place)


def _dataclass(declared: Any, value: object, place: str) -> Any:
    entries = dict(_mapping(value, place))
    kind = getattr(declared, "name_in_files", None)
    if kind is not None and entries.pop(KIND, None) != kind:
        raise TypedError(f"{place} is no {kind!r}")
    declared_fields = {field.name: field for field in fields(declared)}
    unknown = sorted(entries.keys() - declared_fields.keys())
    missing = [name for name, field in declared_fields.items() if name not in entries and not _has_default(field)]
    if unknown or missing:
        raise TypedError(f"{place} has {'unknown' if unknown else 'no'} {', '.join(unknown or missing)}")
    hints = _hints(declared)
    return declared(**{name: _read(hints[name], entry, f"{place}.{name}") for name, entry in entries.items()})


@cache
def _hints(declared: type[Any]) -> dict[str, Any]:
    return get_type_hints(declared, include_extras=True)


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _plain(declared: type[Any], value: object, place: str) -> Any:
    if declared is float and type(value) is int:
        value = _float(value, place)
    # True and False are integers for Python, and tensors have subclasses.
    fits = type(value) is declared if declared in (int, float, bool, str, NoneType) else isinstance(value, declared)
    if not fits:
        raise TypedError(f"{place} is {_shown(value)} and must be {_name(declared)}")
    if declared is float and not math.isfinite(value):  # type: ignore[arg-type]
        raise TypedError(f"{place} is {value} and must be finite")
    return value


def _float(value: int, place: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise TypedError(f"{place} is a number that is too large") from None


def _annotated(arguments: tuple[Any, ...], value: object, place: str) -> Any:
    for bound in arguments[1:]:
        if isinstance(bound, Longest) and isinstance(value, list | dict) and len(value) > bound.entries:
            raise TypedError(f"{place} has {len(value):,} entries, of {bound.entries:,} at most")
    found = _read(arguments[0], value, place)
    for bound in arguments[1:]:
        if isinstance(bound, Between) and not bound.least <= found <= bound.most:
            raise TypedError(f"{place} is {_shown(found)} and must be in {bound.least} ... {bound.most}")
    return found


def _literal(arguments: tuple[Any, ...], value: object, place: str) -> Any:
    if type(value) is str and value in arguments:
        return value
    raise TypedError(f"{place} is {_shown(value)}; known are {', '.join(map(repr, arguments))}")


def _union(arguments: tuple[Any, ...], value: object, place: str) -> Any:
    if value is None and NoneType in arguments:
        return None
    choices, tagged = _choices(arguments)
    if len(tagged) > 1:
        kind = _mapping(value, place).get(KIND)
        if not isinstance(kind, str) or kind not in tagged:
            raise TypedError(f"{place} is {_shown(kind)}; known are {', '.join(map(repr, tagged))}")
        return _read(tagged[kind], value, place)
    for choice in choices[:-1]:
        if type(value) is choice:
            return _read(choice, value, place)
    return _read(choices[-1], value, place)


@cache
def _choices(arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """All types but that of null, and those that files name, by their names."""
    choices = tuple(each for each in arguments if each is not NoneType)
    return choices, {each.name_in_files: each for each in choices if hasattr(each, "name_in_files")}


def _list(arguments: tuple[Any, ...], value: object, place: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypedError(f"{place} is {_shown(value)} and must be a list")
    return [_read(arguments[0], each, f"{place}[{index}]") for index, each in enumerate(value)]


def _tuple(arguments: tuple[Any, ...], value: object, place: str) -> tuple[Any, ...]:
    """Any number of entries where `...` follows the type, else as many as types."""
    if arguments[-1] is Ellipsis:
        return tuple(_list(arguments, value, place))
    given = _list((Any,), value, place)
    if len(given) != len(arguments):
        raise TypedError(f"{place} has {len(given)} entries and must have {len(arguments)}")
    pairs = zip(arguments, given, strict=True)
    return tuple(_read(declared, each, f"{place}[{index}]") for index, (declared, each) in enumerate(pairs))


def _dict(arguments: tuple[Any, ...], value: object, place: str) -> dict[str, Any]:
    return {name: _read(arguments[1], each, f"{place}.{name}") for name, each in _mapping(value, place).items()}


_GENERIC: dict[Any, Callable[[tuple[Any, ...], object, str], Any]] = {
    Annotated: _annotated,
    Literal: _literal,
    Union: _union,
    UnionType: _union,
    list: _list,
    tuple: _tuple,
    dict: _dict,
}


def _mapping(value: object, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypedError(f"{place} is {_shown(value)} and must have names")
    return value


def _name(declared: type[Any]) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}
    return names.get(declared, f"a {declared.__name__.lower()}")


def _shown(value: object) -> str:
    """A value in an error text: short, whatever it is."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return repr(value) if len(value) <= 40 else f"{value[:40]!r}..."
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 64):
        return str(value)
    return f"a {type(value).__name__}"
