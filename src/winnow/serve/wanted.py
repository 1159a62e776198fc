"""Requests for an answer, read from OpenAI's JSON. Fields that would change the answer and cannot are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as shown
from typing import Any

from winnow.evaluate.sampling import Sampling
from winnow.serve import fields
from winnow.serve.messages import Message, read_messages
from winnow.serve.refusals import Refused
from winnow.serve.response_format import FORMAT, Format, read_format
from winnow.serve.tools import FIELDS, Tool, read_tools

IGNORED = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
)
"""Fields that say nothing about the answer."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
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
COMMON = frozenset(
    ("model", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "n", *NEUTRAL, *IGNORED)
)
MOST_STOPS = 16
HOTTEST = 100.0
"""Temperature, at most: long before it all tokens are as likely."""


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
    answers: int = 1
    """Answers to the one prompt."""
    tools: tuple[Tool, ...] = ()
    """Tools that the model may call."""
    strict: frozenset[str] = frozenset()
    """Names of functions whose arguments are to match their schemas."""
    forced: frozenset[str] = frozenset()
    """Names of functions of which one must be called; none where the model may answer in words."""
    one_call: bool = False
    """True if an answer is to have one call at most."""
    format: Format | None = None
    """The form that answers without calls are to have; None for any text."""

    def sampling(self, default: Sampling) -> Sampling:
        """Settings of the server's, but for what the request says."""
        temperature = default.temperature if self.temperature is None else self.temperature
        top_p = default.top_p if self.top_p is None else self.top_p
        return Sampling(temperature, top_p, default.seed if self.seed is None else self.seed)


def read_chat(body: Any) -> Wanted:
    """A request of /v1/chat/completions. Raises Refused."""
    neutral = {name: values for name, values in NEUTRAL.items() if name not in (*FIELDS, FORMAT)}
    given = _fields(body, COMMON | {"messages", "max_completion_tokens"}, neutral)
    messages = read_messages(given.get("messages"))
    most = "max_completion_tokens" if given.get("max_completion_tokens") is not None else "max_tokens"
    tools = read_tools(given)
    return replace(
        _wanted(given, most, messages, ""),
        tools=tools.tools,
        strict=tools.strict,
        forced=tools.forced,
        one_call=tools.once,
        format=read_format(given),
    )


def read_completion(body: Any) -> Wanted:
    """A request of /v1/completions. Raises Refused."""
    given = _fields(body, COMMON | {"prompt"}, NEUTRAL)
    prompt = given.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        (prompt,) = prompt
    if not isinstance(prompt, str) or not prompt:
        raise Refused("prompt must be one text; send several in requests of their own.", "prompt")
    return _wanted(given, "max_tokens", (), fields.text(prompt, "prompt"))


def _fields(body: Any, known: frozenset[str], neutral: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise Refused("the request must be a JSON object.")
    given = {name: value for name, value in body.items() if value is not None}  # null asks for nothing
    for name, value in given.items():
        if name not in known:
            raise Refused(f"{name} is not supported; leave it out.", name)
        if name in neutral and not any(_same(value, each) for each in neutral[name]):
            raise Refused(f"{name}={shown(value)} is not supported; leave it out.", name)
    return given


def _same(value: Any, other: Any) -> bool:
    """True for equal values of JSON, in which 0 is not false."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _wanted(given: Mapping[str, Any], most: str, messages: tuple[Message, ...], text: str) -> Wanted:
    options = given.get("stream_options", {})
    if not isinstance(options, dict) or set(options) - {"include_usage", "include_obfuscation"}:
        raise Refused("stream_options may have include_usage, and nothing else.", "stream_options")
    model = given.get("model")
    if model is not None and not isinstance(model, str):
        raise Refused("model must be a name.", "model")
    top_p = fields.number(given, "top_p", 0, 1)
    if top_p == 0:
        raise Refused("top_p must be above 0; for the most likely token use temperature 0.", "top_p")
    return Wanted(
        model=model,
        messages=messages,
        text=text,
        max_new_tokens=fields.whole(given, most, 1),
        temperature=fields.number(given, "temperature", 0, HOTTEST),
        top_p=top_p,
        seed=fields.whole(given, "seed", -(2**63)),
        stops=_stops(given.get("stop", ())),
        stream=fields.truth(given, "stream"),
        counted=fields.truth(options, "include_usage"),
        answers=fields.whole(given, "n", 1) or 1,
    )


def _stops(value: Any) -> tuple[str, ...]:
    stops: Sequence[Any] = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or len(stops) > MOST_STOPS:
        raise Refused(f"stop must be a text or a list of {MOST_STOPS} texts at most.", "stop")
    if not all(isinstance(stop, str) and stop for stop in stops):
        raise Refused("stop must be texts that are not empty.", "stop")
    return tuple(stops)
