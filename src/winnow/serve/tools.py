"""Tools that a request offers to the model, read from OpenAI's JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any, NamedTuple

from winnow.serve import fields
from winnow.serve.refusals import Refused

FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
"""Fields of a request about tools."""
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
Tool = Mapping[str, Any]
"""A tool as chat templates take it: {"type": "function", "function": {"name", "description", "parameters", …}}."""


class Offer(NamedTuple):
    """Tools that the model may call."""

    tools: tuple[Tool, ...] = ()
    strict: frozenset[str] = frozenset()
    """Names of functions whose arguments are to match their schemas."""
    forced: frozenset[str] = frozenset()
    """Names of functions of which one must be called; none where the model may answer in words."""
    once: bool = False
    """True if an answer is to have one call at most."""


def read_tools(given: Mapping[str, Any]) -> Offer:
    """The tools that the model may call; none where `tool_choice` says so. Raises Refused."""
    tools = given.get("tools", [])
    if not isinstance(tools, list):
        raise Refused("tools must be a list of tools.", "tools")
    read = tuple(_tool(each, f"tools[{place}]") for place, each in enumerate(tools))
    several = fields.truth(given, "parallel_tool_calls", otherwise=True)
    names = frozenset(each["function"]["name"] for each in read)
    strict = frozenset(each["function"]["name"] for each in tools if each["function"].get("strict"))
    choice = given.get("tool_choice", "auto")
    if choice == "none":
        return Offer(once=not several)
    if choice == "auto":
        return Offer(read, strict, once=not several)
    forced = names if choice == "required" else names & {_named(choice)}
    if not forced:
        raise Refused(f"tool_choice={shown(choice)} names none of the tools.", "tool_choice")
    return Offer(read, strict, forced, once=not several or choice != "required")


def _named(choice: Any) -> str:
    """The function that is to be called."""
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise Refused(
            'tool_choice must be auto, none, required, or {"type": "function", "function": {"name": …}}; it is '
            f"{shown(choice)}.",
            "tool_choice",
        )
    return name


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
    strict = function.get("strict")
    if not isinstance(strict, bool | None):
        raise Refused(f"{place}.function.strict must be true or false.", "tools")
    if strict and parameters and parameters.get("type") != "object":
        raise Refused(f"{place}.function.parameters must have the type object where strict is true.", "tools")
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
