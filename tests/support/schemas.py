"""JSON schemas, and what they say, written from their definition."""

from __future__ import annotations

from typing import Any

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["cat", "dog", None]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "home": {"$ref": "#/$defs/home"},
    },
    "required": ["name", "age", "home"],
    "additionalProperties": False,
    "$defs": {
        "home": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 4}},
            "required": ["city"],
            "additionalProperties": False,
        }
    },
}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
    "required": ["next"],
    "additionalProperties": False,
}
_TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int,
    "number": (int, float),
}  # fmt: skip


def follows(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None) -> bool:
    """True if a schema accepts a value."""
    root = schema if root is None else root
    if "$ref" in schema:
        found: Any = root
        for key in schema["$ref"].removeprefix("#").split("/")[1:]:
            found = found[key]
        return follows(value, found, root)
    if "anyOf" in schema:
        return any(follows(value, each, root) for each in schema["anyOf"])
    if "enum" in schema:
        return any(type(value) is type(each) and value == each for each in schema["enum"])
    kind = schema.get("type")
    if kind is None:
        return True
    if not isinstance(value, _TYPES[kind]) or (kind in ("integer", "number") and isinstance(value, bool)):
        return False
    if kind == "object":
        return _object_follows(value, schema, root)
    if kind == "array":
        return len(value) <= schema.get("maxItems", len(value)) and all(
            follows(each, schema.get("items", {}), root) for each in value
        )
    if kind == "string":
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    return kind not in ("integer", "number") or schema.get("minimum", value) <= value <= schema.get("maximum", value)


def _object_follows(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any]) -> bool:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if not all(key in value for key in schema.get("required", ())):
        return False
    if others is False and any(key not in known for key in value):
        return False
    rest = others if isinstance(others, dict) else {}
    return all(follows(each, known.get(key, rest), root) for key, each in value.items())
