"""Messages of a conversation, read from OpenAI's JSON: words, calls of tools, and what tools answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

from winnow.serve import fields
from winnow.serve.refusals import Refused

ROLES = ("system", "developer", "user", "assistant", "tool")
UNHEARD = ("function_call", "audio")
"""Fields of a message that say more than it can have here."""


@dataclass(frozen=True)
class Called:
    """A call of a tool that an earlier answer made."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """Words of somebody in a conversation."""

    role: str
    content: str
    calls: tuple[Called, ...] = ()
    answers: Called | None = None
    """The call of which a tool's message has the result."""

    @property
    def of_tools(self) -> bool:
        """True for a call, and for the result of one."""
        return bool(self.calls) or self.answers is not None

    def templated(self) -> dict[str, Any]:
        """The message as chat templates take it, in which arguments are no text."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.calls:
            message["tool_calls"] = [
                {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
                for each in self.calls
            ]
        if self.answers is not None:
            message |= {"tool_call_id": self.answers.id, "name": self.answers.name}
        return message


def read_messages(value: Any) -> tuple[Message, ...]:
    """A conversation that is to be answered. Raises Refused."""
    if not isinstance(value, list) or not value:
        raise Refused("messages must be a list of messages, the last one the user's or a tool's.", "messages")
    read: list[Message] = []
    calls: dict[str, Called] = {}
    for number, each in enumerate(value):
        read.append(_message(each, f"messages[{number}]", calls))
        calls |= {call.id: call for call in read[-1].calls}
    if read[-1].role not in ("user", "tool"):
        raise Refused("the last message must be the user's or a tool's: it is the one that is answered.", "messages")
    return tuple(read)


def _message(value: Any, place: str, earlier: Mapping[str, Called]) -> Message:
    if not isinstance(value, dict):
        raise Refused(f"{place} must be an object with role and content.", "messages")
    role, content = value.get("role"), value.get("content")
    if role not in ROLES:
        raise Refused(f"{place}.role must be one of {', '.join(ROLES)}; it is {shown(role)}.", "messages")
    for name in UNHEARD if role == "assistant" else (*UNHEARD, "tool_calls"):
        if value.get(name) not in (None, [], {}):
            raise Refused(f"{place}.{name} is not supported in a message of {role}; leave it out.", "messages")
    calls = _calls(value.get("tool_calls") or [], f"{place}.tool_calls") if role == "assistant" else ()
    # Many templates want a text also where an answer was a call alone.
    words = "" if calls and content is None else _content(content, f"{place}.content")
    # The system role was given a new name later, which chat templates do not know.
    spoken = "system" if role == "developer" else role
    return Message(spoken, words, calls, _answered(value, place, earlier) if role == "tool" else None)


def _content(value: Any, place: str) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, str):
        return fields.text(value, "messages")
    parts = value if isinstance(value, list) else [None]
    of_text = (part for part in parts if isinstance(part, dict) and part.get("type") == "text")
    texts = [part["text"] for part in of_text if isinstance(part.get("text"), str)]
    if len(texts) < len(parts):
        raise Refused(
            f"{place} must be a text, or a list of parts of type text: no images, sounds or files.", "messages"
        )
    return fields.text("\n".join(texts), "messages")


def _calls(value: Any, place: str) -> tuple[Called, ...]:
    if not isinstance(value, list):
        raise Refused(f"{place} must be a list of calls.", "messages")
    return tuple(_call(each, f"{place}[{number}]") for number, each in enumerate(value))


def _call(value: Any, place: str) -> Called:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or value.get("type", "function") != "function":
        raise Refused(
            f'{place} must be {{"id": …, "type": "function", "function": {{"name": …, "arguments": …}}}}.', "messages"
        )
    known, name = value.get("id"), function.get("name")
    if not (isinstance(known, str) and known and isinstance(name, str) and name):
        raise Refused(f"{place} must have an id, and its function a name.", "messages")
    arguments = _arguments(function.get("arguments"), f"{place}.function.arguments")
    return Called(fields.text(known, "messages"), fields.text(name, "messages"), arguments)


def _arguments(value: Any, place: str) -> dict[str, Any]:
    """Arguments of a call, which a request gives as a text of JSON."""
    try:
        arguments = json.loads(value) if isinstance(value, str) else None
        if isinstance(arguments, dict):
            fields.text(json.dumps(arguments, ensure_ascii=False), "messages")
            return arguments
    except (ValueError, RecursionError):
        pass
    raise Refused(f"{place} must be a text that is a JSON object; it is {shown(value)}.", "messages")


def _answered(value: Mapping[str, Any], place: str, earlier: Mapping[str, Called]) -> Called:
    """The call that a tool's message answers."""
    told = value.get("tool_call_id")
    found = earlier.get(told) if isinstance(told, str) else None
    if found is None:
        raise Refused(
            f"{place}.tool_call_id must be the id of a call in an earlier message of the assistant; it is "
            f"{shown(told)}.",
            "messages",
        )
    return found
