"""Tools that a request offers to the model, read from OpenAI's JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any

from winnow.serve import fields
from winnow.serve.refusals import Refused

FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
"""Fields of a request about tools."""
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
Tool = Mapping[str, Any]
"""A tool as chat templates take it: {"type": "function", "function": {"name", "description", "parameters", …}}."""


def read_tools(given: Mapping[str, Any]) -> tuple[Tool, ...]:
    """The tools that the model may call; none where `tool_choice` says so. Raises Refused."""
    tools = given.get("tools", [])
    if not isinstance(tools, list):
        raise Refused("tools must be a list of tools.", "tools")
    read = tuple(_tool(each, f"tools[{place}]") for place, each in enumerate(tools))
    choice = given.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise Refused(
            f"tool_choice={shown(choice)} is not supported: decoding is not constrained, so a call cannot be forced. "
            "Use auto or none, and ask for the call in a message.",
            "tool_choice",
        )
    return read if choice == "auto" else ()


def _tool(value: Any, place: str) -> Tool:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or value.get("type") != "function":
        raise Refused(f'{place} must be {{"type": "function", "function": {{"name": …}}}}.', "tools")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Refused(f"{place}.function.name must be 1 to 64 letters, digits, _ or -; it is {shown(name)}.", "tools")
    if not isinstance(parameters, dict | None):
        raise Refused(f"{place}.function.parameters must be a JSON schema, which is an object.", "tools")
    description = function.get("description")
    if not isinstance(description, str | None):
        raise Refused(f"{place}.function.description must be a text.", "tools")
    if function.get("strict") not in (None, False):
        raise Refused(
            f"{place}.function.strict is not supported: decoding is not constrained, so arguments may not match their "
            "schema; leave it out.",
            "tools",
        )
    # Many templates take for granted that all three are there.
    read = {
        "name": name,
        "description": description or "",
        "parameters": parameters or {"type": "object", "properties": {}},
    }
    more = {key: each for key, each in function.items() if key not in read and key != "strict"}
    return {"type": "function", "function": _writable({**read, **more}, place)}


def _writable(function: dict[str, Any], place: str) -> dict[str, Any]:
    """A tool that a template can write as JSON. Raises Refused."""
    try:
        fields.text(json.dumps(function, ensure_ascii=False), "tools")
    except RecursionError:
        raise Refused(f"{place} is nested too deeply.", "tools") from None
    return function
