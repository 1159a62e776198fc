"""Answers in OpenAI's JSON, whole or as a stream of pieces."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from winnow.serve.asked import Begun, Finished
from winnow.serve.calls import Call
from winnow.serve.heard import Ending, Heard


@dataclass(frozen=True)
class Reply:
    """The form of the answers to one request."""

    model: str
    chat: bool
    """True for messages of a conversation, False for texts that go on."""
    calls: bool = False
    """True if messages may be calls of tools, and no text then."""
    name: str = field(default_factory=lambda: uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, begun: Begun, answers: Sequence[tuple[Heard, Finished]]) -> dict[str, Any]:
        """The answers in one piece."""
        choices = [
            _choice(index, self._answer(heard), heard.ending(finished))
            for index, (heard, finished) in enumerate(answers)
        ]
        finished = [each for _, each in answers]
        body = self._body("chat.completion" if self.chat else "text_completion", choices)
        return {**body, "usage": usage(begun, finished), "winnow": costs(finished)}

    def first(self, index: int) -> dict[str, Any]:
        """The piece of a stream before any word of an answer."""
        content = None if self.calls else ""
        return self._piece(index, {"delta": {"role": "assistant", "content": content}} if self.chat else {"text": ""})

    def words(self, index: int, text: str) -> dict[str, Any]:
        """A piece of a stream."""
        return self._piece(index, {"delta": {"content": text}} if self.chat else {"text": text})

    def call(self, index: int, place: int, call: Call) -> dict[str, Any]:
        """A piece of a stream that is a call of a tool; place: of the call among those of its answer."""
        return self._piece(index, {"delta": {"tool_calls": [{"index": place, **_call(call)}]}})

    def last(self, heard: Heard, finished: Finished) -> dict[str, Any]:
        """The piece of a stream that says why an answer ends."""
        body = self._piece(finished.number, {"delta": {}} if self.chat else {"text": ""}, heard.ending(finished))
        return {**body, "winnow": costs([finished])}

    def counted(self, begun: Begun, finished: Sequence[Finished]) -> dict[str, Any]:
        """The piece behind all others that has the numbers of tokens."""
        return {**self._body(self._of_stream, []), "usage": usage(begun, finished)}

    def _answer(self, heard: Heard) -> dict[str, Any]:
        if not self.chat:
            return {"text": heard.text}
        message: dict[str, Any] = {"role": "assistant", "content": heard.text}
        if heard.calls:
            message |= {"content": heard.text or None, "tool_calls": [_call(each) for each in heard.calls]}
        return {"message": message}

    @property
    def _of_stream(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _piece(self, index: int, said: dict[str, Any], ending: Ending | None = None) -> dict[str, Any]:
        return self._body(self._of_stream, [_choice(index, said, ending)])

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = f"{'chatcmpl' if self.chat else 'cmpl'}-{self.name}"
        return {"id": name, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def _choice(index: int, said: dict[str, Any], ending: Ending | None) -> dict[str, Any]:
    return {"index": index, **said, "logprobs": None, "finish_reason": ending}


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def usage(begun: Begun, finished: Sequence[Finished]) -> dict[str, Any]:
    """Numbers of tokens: those of the prompt, which was read once, and of all answers."""
    said = sum(each.tokens for each in finished)
    return {
        "prompt_tokens": begun.prompt_tokens,
        "completion_tokens": said,
        "total_tokens": begun.prompt_tokens + said,
        "prompt_tokens_details": {"cached_tokens": begun.held_tokens},
    }


def costs(finished: Sequence[Finished]) -> dict[str, Any]:
    """The memory that an answer's row held, and times: no other server tells of them. Of several the most."""
    every = [each.costs for each in finished]
    return (
        every[0]
        ._replace(
            held_bytes=max(each.held_bytes for each in every),
            full_bytes=max(each.full_bytes for each in every),
            answer_seconds=max(each.answer_seconds for each in every),
        )
        ._asdict()
    )


def models(names: Sequence[str], created: int) -> dict[str, Any]:
    """The list of models."""
    return {"object": "list", "data": [model(name, created) for name in names]}


def model(name: str, created: int) -> dict[str, Any]:
    """A model."""
    return {"id": name, "object": "model", "created": created, "owned_by": "winnow"}
