"""Requests for an answer, read from OpenAI's JSON. Fields that would change the answer and cannot are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

from winnow.evaluate.sampling import Sampling
from winnow.serve.refusals import Refused

ROLES = ("system", "developer", "user", "assistant")
IGNORED = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
)
"""Fields that say nothing about the answer."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""Fields that are taken only with the values that ask for nothing."""
UNHEARD = ("tool_calls", "function_call", "audio")
"""Fields of a message that say more than its text."""
COMMON = frozenset(
    ("model", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options", *NEUTRAL, *IGNORED)
)
MOST_STOPS = 16
HOTTEST = 100.0
"""Temperature, at most: long before it all tokens are as likely."""


@dataclass(frozen=True)
class Message:
    """Words of somebody in a conversation."""

    role: str
    content: str


@dataclass(frozen=True)
class Wanted:
    """An answer that is asked for, as far as the request says; the rest is the server's to choose."""

    model: str | None
    messages: tuple[Message, ...]
    """A conversation; empty where `text` is to be continued."""
    text: str
    max_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    seed: int | None
    stops: tuple[str, ...]
    stream: bool
    counted: bool
    """True if a stream is to end with the numbers of tokens."""

    def sampling(self, default: Sampling) -> Sampling:
        """Settings of the server's, but for what the request says."""
        temperature = default.temperature if self.temperature is None else self.temperature
        top_p = default.top_p if self.top_p is None else self.top_p
        return Sampling(temperature, top_p, default.seed if self.seed is None else self.seed)


def read_chat(body: Any) -> Wanted:
    """A request of /v1/chat/completions. Raises Refused."""
    given = _fields(body, COMMON | {"messages", "max_completion_tokens"})
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("messages must be a list of messages, the last one the user's.", "messages")
    read = tuple(_message(each, f"messages[{place}]") for place, each in enumerate(messages))
    if read[-1].role != "user":
        raise Refused("the last message must be the user's: it is the one that is answered.", "messages")
    most = "max_completion_tokens" if given.get("max_completion_tokens") is not None else "max_tokens"
    return _wanted(given, most, read, "")


def read_completion(body: Any) -> Wanted:
    """A request of /v1/completions. Raises Refused."""
    given = _fields(body, COMMON | {"prompt"})
    prompt = given.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        (prompt,) = prompt
    if not isinstance(prompt, str) or not prompt:
        raise Refused("prompt must be one text; send several in requests of their own.", "prompt")
    return _wanted(given, "max_tokens", (), _text(prompt, "prompt"))


def _fields(body: Any, known: frozenset[str]) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise Refused("the request must be a JSON object.")
    given = {name: value for name, value in body.items() if value is not None}  # null asks for nothing
    for name, value in given.items():
        if name not in known:
            raise Refused(f"{name} is not supported; leave it out.", name)
        if name in NEUTRAL and not any(_same(value, each) for each in NEUTRAL[name]):
            raise Refused(f"{name}={shown(value)} is not supported; leave it out.", name)
    return given


def _same(value: Any, other: Any) -> bool:
    """True for equal values of JSON, in which 0 is not false."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _message(value: Any, place: str) -> Message:
    if not isinstance(value, dict):
        raise Refused(f"{place} must be an object with role and content.", "messages")
    role = value.get("role")
    if role not in ROLES:
        raise Refused(f"{place}.role must be one of {', '.join(ROLES)}; it is {shown(role)}.", "messages")
    for name in UNHEARD:
        if value.get(name) not in (None, [], {}):
            raise Refused(
                f"{place}.{name} is not supported: there are no tools and no sounds; leave it out.", "messages"
            )
    # What was once called the system role has a new name, which chat templates do not know.
    return Message("system" if role == "developer" else role, _content(value.get("content"), f"{place}.content"))


def _content(value: Any, place: str) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, str):
        return _text(value, "messages")
    parts = value if isinstance(value, list) else [None]
    of_text = (part for part in parts if isinstance(part, dict) and part.get("type") == "text")
    texts = [part["text"] for part in of_text if isinstance(part.get("text"), str)]
    if len(texts) < len(parts):
        raise Refused(
            f"{place} must be a text, or a list of parts of type text: no images, sounds or files.", "messages"
        )
    return _text("\n".join(texts), "messages")


def _text(value: str, name: str) -> str:
    """A text for the model. Raises Refused for half of a surrogate pair, which JSON can say and no tokenizer reads."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise Refused(f"{name} has half of a character, {value[problem.start]!r}.", name) from None
    return value


def _wanted(given: Mapping[str, Any], most: str, messages: tuple[Message, ...], text: str) -> Wanted:
    options = given.get("stream_options", {})
    if not isinstance(options, dict) or set(options) - {"include_usage", "include_obfuscation"}:
        raise Refused("stream_options may have include_usage, and nothing else.", "stream_options")
    model = given.get("model")
    if model is not None and not isinstance(model, str):
        raise Refused("model must be a name.", "model")
    return Wanted(
        model=model,
        messages=messages,
        text=text,
        max_new_tokens=_whole(given, most, 1),
        temperature=_number(given, "temperature", 0, HOTTEST),
        top_p=_number(given, "top_p", 0, 1),
        seed=_whole(given, "seed", -(2**63)),
        stops=_stops(given.get("stop", ())),
        stream=_truth(given, "stream"),
        counted=_truth(options, "include_usage"),
    )


def _whole(given: Mapping[str, Any], name: str, least: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise Refused(f"{name} must be a whole number of at least {least}; it is {shown(value)}.", name)
    return value


def _number(given: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise Refused(f"{name} must be a number from {least:g} to {most:g}.", name)
    if name == "top_p" and not value:
        raise Refused("top_p must be above 0; for the most likely token use temperature 0.", name)
    return float(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops: Sequence[Any] = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or len(stops) > MOST_STOPS:
        raise Refused(f"stop must be a text or a list of {MOST_STOPS} texts at most.", "stop")
    if not all(isinstance(stop, str) and stop for stop in stops):
        raise Refused("stop must be texts that are not empty.", "stop")
    return tuple(stops)


def _truth(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise Refused(f"{name} must be true or false.", name)
    return value
