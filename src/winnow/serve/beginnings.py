"""Beginnings of requests: nothing, or a document that was compressed before; and their prompts as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from winnow.cache.compressed import CompressedCache
from winnow.composition.method import Method
from winnow.errors import PromptError
from winnow.evaluate.turns import Subject, Turn, answered, chat_text, conversation_text, templated
from winnow.serve.calls import Form
from winnow.serve.messages import Message
from winnow.serve.refusals import Refused
from winnow.serve.tool_templates import form_of, tool_text
from winnow.serve.wanted import Wanted
from winnow.tasks.prompt_style import PromptStyle


@dataclass(frozen=True)
class Beginning:
    """A model by the name that requests give it: as it is, or with a document."""

    name: str
    method: Method
    subject: Subject
    tokens: tuple[int, ...]
    """Those that every cache of it holds; none without a document."""
    cache: Callable[[int], CompressedCache]
    """Makes a cache to begin with, for a prompt of so many tokens."""
    nbytes: int = 0
    """Those that all its caches share."""

    def begins(self, tokens: Sequence[int]) -> bool:
        """True if a prompt goes on behind the tokens that every cache of it holds."""
        return len(tokens) > len(self.tokens) and tuple(tokens[: len(self.tokens)]) == self.tokens


class Prompt(NamedTuple):
    """A request as text."""

    text: str
    templated: bool
    """True if a chat template wrote it, with all special tokens."""
    style: PromptStyle | None
    """None for a text that is gone on with as it is."""
    form: Form | None = None
    """The way in which the answer's calls of tools are written; None where it has none."""

    @property
    def field(self) -> str:
        """The field of the request that has it."""
        return "prompt" if self.style is None else "messages"

    def answered(self, tokenizer: PreTrainedTokenizerBase, answer: str) -> str:
        """The text with an answer behind it."""
        return self.text + answer if self.style is None else answered(tokenizer, self.text, answer, self.style)


def prompt_of(tokenizer: PreTrainedTokenizerBase, beginning: Beginning, wanted: Wanted) -> Prompt:
    """A request's prompt. Raises Refused."""
    style = beginning.subject.style
    if not wanted.messages:
        if beginning.tokens:
            raise Refused(
                f"{beginning.name} is a document to be asked; use /v1/chat/completions, or another model.", "model"
            )
        return Prompt(wanted.text, False, None)
    if wanted.tools or any(each.of_tools for each in wanted.messages):
        return _with_tools(tokenizer, beginning, wanted)
    try:
        if templated(tokenizer, style) and not beginning.tokens:
            return Prompt(chat_text(tokenizer, _with_system(style, wanted.messages)), True, style)
        return Prompt(_conversation(tokenizer, beginning, wanted.messages), templated(tokenizer, style), style)
    except PromptError as problem:
        raise Refused(str(problem), "messages") from None


def _with_tools(tokenizer: PreTrainedTokenizerBase, beginning: Beginning, wanted: Wanted) -> Prompt:
    """A conversation with tools, with what they were called for, or with both."""
    style = beginning.subject.style
    if beginning.tokens or not templated(tokenizer, style):
        why = "it is a document" if beginning.tokens else "it has no chat template"
        raise Refused(
            f"{beginning.name} takes no tools, because {why}; leave them out, or name another model.",
            "tools" if wanted.tools else "messages",
        )
    form = form_of(tokenizer, wanted.tools)
    return Prompt(tool_text(tokenizer, _with_system(style, wanted.messages), wanted.tools), True, style, form)


def _with_system(style: PromptStyle, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates take them, after the server's own instructions where they have none."""
    given = [each.templated() for each in messages]
    own = style.system is not None and given[0]["role"] != "system"
    return [{"role": "system", "content": style.system or ""}, *given] if own else given


def _conversation(tokenizer: PreTrainedTokenizerBase, beginning: Beginning, messages: Sequence[Message]) -> str:
    """Questions and answers in turn, about a document or without a chat template."""
    subject, said = beginning.subject, list(messages)
    if said[0].role == "system":
        if beginning.tokens:
            raise Refused(
                f"{beginning.name} was compressed with instructions of its own; leave the system message out.",
                "messages",
            )
        style = subject.style
        subject = Subject(None, PromptStyle(system=said.pop(0).content, chat_template=style.chat_template))
    roles = [each.role for each in said]
    if roles != ["user", "assistant"] * (len(said) // 2) + ["user"]:
        raise Refused("messages must be the user's and the assistant's in turn, the user's first and last.", "messages")
    turns = [Turn(asked.content, answer.content) for asked, answer in zip(said[::2], said[1::2], strict=False)]
    return conversation_text(tokenizer, subject, turns, said[-1].content)
