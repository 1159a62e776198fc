"""Plain values, as files give them, read as declared types.

A schema is a dataclass: its fields are the names that a file must have, and no others; their types say what is there.
`Annotated` adds what a type alone does not say: `Between` a range, `Sized` a length, `OneOf` the values. Whatever does
not fit is refused with its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
KIND = "kind"
"""Name under which a value says which of several dataclasses it is; they carry it as `name_in_files`."""
_SHOWN = 40


class Between(NamedTuple):
    """A range of numbers, both ends included."""

    least: float
    most: float


class Sized(NamedTuple):
    """A number of entries, looked at before any of them."""

    least: int = 0
    most: int | None = None
    """None: any number."""


class OneOf(NamedTuple):
    """Values of which it is one."""

    values: tuple[str | int | float | None, ...]


class TypedError(ValueError):
    """A value that is not of the declared type; the text names its place and what belongs there."""


def read_as(declared: type[T], value: object, place: str = "") -> T:
    """A plain value (of JSON, tensors where a type says so) as the declared type, a dataclass as a rule.

    place: the value's name in error texts; none for a whole file or line.

    Raises:
        TypedError: names the place of what is missing, unknown, of another type or out of range.
    """
    found: T = _read(declared, value, place)
    return found


def read_fields(declared: Mapping[str, Any], value: object, place: str = "") -> dict[str, Any]:
    """Entries of an object, all of them, each as its declared type; for types that are known at run time only.

    Raises TypedError as `read_as`.
    """
    entries = _mapping(value, place)
    _check_names(entries, declared, declared, place)
    return {name: _read(declared[name], entry, _inside(place, name)) for name, entry in entries.items()}


def shown(value: object) -> str:
    """A plain value for an error text, cut off where it is long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):  # no JSON, as tensors; a number of thousands of digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _read(declared: Any, value: object, place: str) -> Any:
    return _reader(declared)(value, place)


def _reader(declared: Any) -> Callable[[object, str], Any]:
    """(value, place) -> the value as the declared type."""
    if declared is Any:
        return lambda value, _: value
    if is_dataclass(declared):
        return partial(_dataclass, declared)
    origin = get_origin(declared)
    if origin is None:
        return partial(_plain, declared)
    return partial(_GENERIC[origin], get_args(declared))


def _as_is(declared: Any, value: object) -> bool:
    """True for what needs no further look, as most values do: their places, which only errors tell, are not written."""
    if declared is Any:
        return True
    return type(value) is declared and (declared in _EXACT or (type(value) is float and math.isfinite(value)))


class _Fields(NamedTuple):
    """Fields of a dataclass, by name, looked up once."""

    types: dict[str, Any]
    readers: dict[str, Callable[[object, str], Any]]
    needed: tuple[str, ...]


@cache
def _fields(declared: Any) -> _Fields:
    hints = get_type_hints(declared, include_extras=True)
    found = fields(declared)
    types = {field.name: hints[field.name] for field in found}
    readers = {name: _reader(declared) for name, declared in types.items()}
    return _Fields(types, readers, tuple(field.name for field in found if not _has_default(field)))


def _dataclass(declared: Any, value: object, place: str) -> Any:
    entries = dict(_mapping(value, place))
    kind = getattr(declared, "name_in_files", None)
    if kind is not None and (found := entries.pop(KIND, None)) != kind:
        raise _misfit(_inside(place, KIND), shown(kind), found)
    types, readers, needed = _fields(declared)
    _check_names(entries, types, needed, place)
    for name, entry in entries.items():
        if not _as_is(types[name], entry):
            entries[name] = readers[name](entry, _inside(place, name))
    return declared(**entries)


def _check_names(entries: Mapping[str, Any], known: Iterable[str], needed: Iterable[str], place: str) -> None:
    for name in needed:
        if name not in entries:
            raise TypedError(f"there is no {shown(_inside(place, name))}")
    for name in entries:
        if name not in known:
            raise TypedError(f"no {shown(_inside(place, name))} belongs there, only {', '.join(known)}")


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _plain(declared: type[Any], value: object, place: str, wanted: str | None = None) -> Any:
    found = _as_float(value) if declared is float else value
    # True and False are integers for Python, and tensors have subclasses.
    fits = type(found) is declared if declared in _NAMES else isinstance(found, declared)
    if not fits or (isinstance(found, float) and not math.isfinite(found)):
        raise _misfit(place, wanted or _name(declared), value)
    return found


def _as_float(value: object) -> object:
    """A whole number is a number, too, unless it is too large for one."""
    try:
        return float(value) if type(value) is int else value
    except OverflowError:
        return value


def _annotated(arguments: tuple[Any, ...], value: object, place: str) -> Any:
    declared, bound = arguments
    if isinstance(bound, Between):
        return _between(declared, bound, value, place)
    fits = _is_one_of(bound.values, value) if isinstance(bound, OneOf) else _is_sized(bound, value)
    if not fits:
        raise _misfit(place, _listed(bound.values) if isinstance(bound, OneOf) else _sized(declared, bound), value)
    return _read(declared, value, place)


def _between(declared: type[Any], bound: Between, value: object, place: str) -> Any:
    if _as_is(declared, value) and bound.least <= value <= bound.most:  # type: ignore[operator]
        return value
    ends = (f"{bound.least:,}", f"{bound.most:,}") if declared is int else (f"{bound.least:g}", f"{bound.most:g}")
    wanted = f"{_name(declared)} from {ends[0]} to {ends[1]}"
    found = _plain(declared, value, place, wanted)
    if not bound.least <= found <= bound.most:
        raise _misfit(place, wanted, value)
    return found


def _is_one_of(values: tuple[Any, ...], value: object) -> bool:
    return type(value) in (str, int, float, NoneType) and value in values


def _listed(values: tuple[Any, ...]) -> str:
    """Values in words, the first of many."""
    told = ", ".join(map(shown, values[:6])) + (", …" if len(values) > 6 else "")
    return told if len(values) == 1 else f"one of {told}"


def _is_sized(bound: Sized, value: object) -> bool:
    if not isinstance(value, list | tuple | dict):
        return False
    return bound.least <= len(value) and (bound.most is None or len(value) <= bound.most)


def _sized(declared: Any, bound: Sized) -> str:
    """A list or an object of a size in words."""
    if get_origin(declared) is dict:
        return "an object with names"
    if bound.most is None:
        return "a list of some values"
    return f"a list of {'' if bound.least == bound.most else 'at most '}{bound.most:,} values"


def _literal(arguments: tuple[Any, ...], value: object, place: str) -> Any:
    if not _is_one_of(arguments, value):
        raise _misfit(place, _listed(arguments), value)
    return value


def _union(arguments: tuple[Any, ...], value: object, place: str) -> Any:
    if value is None and NoneType in arguments:
        return None
    choices, tagged = _choices(arguments)
    if len(tagged) > 1:
        kind = _mapping(value, place).get(KIND)
        if not isinstance(kind, str) or kind not in tagged:
            raise _misfit(_inside(place, KIND), _listed(tuple(tagged)), kind)
        return _read(tagged[kind], value, place)
    # What fits none of the others is told as not being the last.
    return _read(next((each for each in choices[:-1] if _is_plainly(each, value)), choices[-1]), value, place)


def _is_plainly(declared: Any, value: object) -> bool:
    return _is_one_of(get_args(declared), value) if get_origin(declared) is Literal else type(value) is declared


@cache
def _choices(arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """All types but that of null, and those that files name, by their names."""
    choices = tuple(each for each in arguments if each is not NoneType)
    return choices, {each.name_in_files: each for each in choices if hasattr(each, "name_in_files")}


def _list(arguments: tuple[Any, ...], value: object, place: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _misfit(place, "a list", value)
    declared = arguments[0]
    return [
        each if _as_is(declared, each) else _read(declared, each, f"{place}[{index}]")
        for index, each in enumerate(value)
    ]


def _tuple(arguments: tuple[Any, ...], value: object, place: str) -> tuple[Any, ...]:
    """Any number of entries where `...` follows the type, else as many as types."""
    if arguments[-1] is Ellipsis:
        return tuple(_list(arguments, value, place))
    if not isinstance(value, list | tuple) or len(value) != len(arguments):
        raise _misfit(place, f"a list of {len(arguments)} values", value)
    pairs = zip(arguments, value, strict=True)
    return tuple(_read(declared, each, f"{place}[{index}]") for index, (declared, each) in enumerate(pairs))


def _dict(arguments: tuple[Any, ...], value: object, place: str) -> dict[str, Any]:
    entries = _mapping(value, place)
    declared = arguments[1]
    return {
        name: each if _as_is(declared, each) else _read(declared, each, f"{place}[{shown(name)}]")
        for name, each in entries.items()
    }


_GENERIC: dict[Any, Callable[[tuple[Any, ...], object, str], Any]] = {
    Annotated: _annotated,
    Literal: _literal,
    Union: _union,
    UnionType: _union,
    list: _list,
    tuple: _tuple,
    dict: _dict,
}
_EXACT = (str, int, bool, NoneType)
"""Types of which every value fits."""
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}


def _name(declared: type[Any]) -> str:
    return _NAMES.get(declared) or f"a {declared.__name__.lower()}"


def _mapping(value: object, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _misfit(place, "an object", value)
    return value


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _misfit(place: str, wanted: str, value: object) -> TypedError:
    return TypedError(f"{place or 'it'} must be {wanted}, not {shown(value)}")
