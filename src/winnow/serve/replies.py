"""Answers in OpenAI's JSON, whole or as a stream of pieces."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from winnow.serve.asked import Begun, Finished, Reason


@dataclass(frozen=True)
class Reply:
    """The form of the answers to one request."""

    model: str
    chat: bool
    """True for a message of a conversation, False for a text that goes on."""
    name: str = field(default_factory=lambda: uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, begun: Begun, text: str, finished: Finished) -> dict[str, Any]:
        """The answer in one piece."""
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        body = self._body("chat.completion" if self.chat else "text_completion", said, finished.reason)
        return {**body, "usage": usage(begun, finished), "winnow": costs(finished)}

    def first(self) -> dict[str, Any]:
        """The piece of a stream before any word."""
        return self._piece({"delta": {"role": "assistant", "content": ""}} if self.chat else {"text": ""})

    def words(self, text: str) -> dict[str, Any]:
        """A piece of a stream."""
        return self._piece({"delta": {"content": text}} if self.chat else {"text": text})

    def last(self, finished: Finished) -> dict[str, Any]:
        """The piece of a stream that says why it ends."""
        body = self._piece({"delta": {}} if self.chat else {"text": ""}, finished.reason)
        return {**body, "winnow": costs(finished)}

    def counted(self, begun: Begun, finished: Finished) -> dict[str, Any]:
        """The piece behind the last one that has the numbers of tokens."""
        return {**self._piece({}), "choices": [], "usage": usage(begun, finished)}

    def _piece(self, said: dict[str, Any], reason: Reason | None = None) -> dict[str, Any]:
        return self._body("chat.completion.chunk" if self.chat else "text_completion", said, reason)

    def _body(self, kind: str, said: dict[str, Any], reason: Reason | None) -> dict[str, Any]:
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        name = f"{'chatcmpl' if self.chat else 'cmpl'}-{self.name}"
        return {"id": name, "object": kind, "created": self.created, "model": self.model, "choices": [choice]}


def usage(begun: Begun, finished: Finished) -> dict[str, Any]:
    """Numbers of tokens."""
    return {
        "prompt_tokens": begun.prompt_tokens,
        "completion_tokens": finished.tokens,
        "total_tokens": begun.prompt_tokens + finished.tokens,
        "prompt_tokens_details": {"cached_tokens": begun.held_tokens},
    }


def costs(finished: Finished) -> dict[str, Any]:
    """The memory that the answer's row held, and times: no other server tells of them."""
    return finished.costs._asdict()


def models(names: Sequence[str], created: int) -> dict[str, Any]:
    """The list of models."""
    return {"object": "list", "data": [model(name, created) for name in names]}


def model(name: str, created: int) -> dict[str, Any]:
    """A model."""
    return {"id": name, "object": "model", "created": created, "owned_by": "winnow"}
