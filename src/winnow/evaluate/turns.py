"""Conversations as text: the chat template of a tokenizer that has one, a plain form for all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from winnow.errors import PromptError
from winnow.tasks import format_prompt


class Turn(NamedTuple):
    """A question with its answer, as far as it was said."""

    question: str
    answer: str


@dataclass(frozen=True)
class Subject:
    """All that stands before the first question."""

    document: str | None = None
    system: str | None = None
    """Instructions for the model, in the template's system role; without a template the text stands before the
    document. An empty one takes the place of the template's own."""


def conversation_text(
    tokenizer: PreTrainedTokenizerBase, subject: Subject, turns: Sequence[Turn], question: str
) -> str:
    """A conversation up to a question, ready for the answer. Without turns it is the prompt of a document.

    Raises:
        PromptError: the chat template refuses it.
    """
    if not templated(tokenizer):
        return _plain(subject, turns, question)
    messages = [] if subject.system is None else [{"role": "system", "content": subject.system}]
    for turn in turns:
        messages += [_asked(turn.question), {"role": "assistant", "content": turn.answer}]
    messages.append(_asked(question))
    if subject.document is not None:
        first = messages[1 if subject.system is not None else 0]
        first["content"] = f"{subject.document}\n\n{first['content']}"
    return chat_text(tokenizer, messages)


def answered(tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str) -> str:
    """A conversation's text with the answer that a model gave to it."""
    return f"{prompt}{answer}" if templated(tokenizer) else f"{prompt} {answer.strip()}"


def templated(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the tokenizer has a chat template, which writes special tokens itself."""
    return getattr(tokenizer, "chat_template", None) is not None


def chat_text(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> str:
    """Messages ("role", "content") as the chat template writes them, ready for the next answer.

    Raises:
        PromptError: the template refuses them.
    """
    try:
        # Models that think aloud would spend the whole answer on it; templates without the switch ignore it.
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
        )
    except TemplateError as problem:
        raise PromptError(
            f"The chat template of this model refuses the conversation: {problem}. Leave the system prompt out, or "
            "write it into the question."
        ) from None


def _asked(question: str) -> dict[str, str]:
    return {"role": "user", "content": question}


def _plain(subject: Subject, turns: Sequence[Turn], question: str) -> str:
    said = "\n\n".join(text for text in (subject.system, subject.document) if text)
    for turn in turns:
        said = f"{_behind(said, turn.question)} {turn.answer.strip()}"
    return _behind(said, question)


def _behind(said: str, question: str) -> str:
    """A question behind all that was said, if anything was."""
    text = format_prompt(said, question)
    return text if said else text.lstrip()
