"""The form that a request wants its answers to have, read from OpenAI's JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any, NamedTuple

from winnow.serve.refusals import Refused
from winnow.serve.rules import ANY_OBJECT, Schema
from winnow.serve.tools import NAME

FORMAT = "response_format"
_SCHEMA = f"{FORMAT}.json_schema"
_KEYS: Mapping[str, tuple[str, ...]] = {"text": (), "json_object": (), "json_schema": ("json_schema",)}
"""Types, and the keys that stand beside them."""


class Format(NamedTuple):
    """A form of answers."""

    schema: Schema
    field: str
    """The place of the request that has it."""


def read_format(given: Mapping[str, Any]) -> Format | None:
    """The schema that answers are to follow; None where they may be any text. Raises Refused."""
    value = given.get(FORMAT, {"type": "text"})
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _KEYS:
        raise Refused(f"{FORMAT} must have the type {', '.join(_KEYS)}; it is {shown(value)}.", FORMAT)
    _check_keys(value, ("type", *_KEYS[kind]), FORMAT)
    if kind == "json_schema":
        return _format(value.get("json_schema"))
    return Format(ANY_OBJECT, FORMAT) if kind == "json_object" else None


def _format(value: Any) -> Format:
    """A schema with its name; whether it is to be followed strictly does not matter, as it always is."""
    if not isinstance(value, dict):
        raise Refused(f'{_SCHEMA} must be {{"name": …, "schema": …}}.', _SCHEMA)
    _check_keys(value, ("name", "schema", "strict", "description"), _SCHEMA)
    name, schema = value.get("name"), value.get("schema")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        place = f"{_SCHEMA}.name"
        raise Refused(f"{place} must be 1 to 64 letters, digits, _ or -; it is {shown(name)}.", place)
    for key, kinds, said in (("strict", bool | None, "true or false"), ("description", str | None, "a text")):
        if not isinstance(value.get(key), kinds):
            raise Refused(f"{_SCHEMA}.{key} must be {said}.", f"{_SCHEMA}.{key}")
    place = f"{_SCHEMA}.schema"
    if not isinstance(schema, dict):
        raise Refused(f"{place} must be a JSON schema, which is an object.", place)
    try:
        json.dumps(schema)
    except RecursionError:
        raise Refused(f"{place} is nested too deeply.", place) from None
    return Format(schema, place)


def _check_keys(value: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    for key, each in value.items():
        if key not in known and each is not None:
            raise Refused(f"{place}.{key} is not supported; leave it out.", f"{place}.{key}")
