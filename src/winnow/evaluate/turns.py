"""Conversations as text: the chat template of a tokenizer that has one, a plain form for all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from winnow.errors import PromptError
from winnow.evaluate.told_day import MEASURED_DAY, telling, tells_day
from winnow.tasks.prompt_style import USUAL, PromptStyle
from winnow.tasks.prompts import format_prompt, plain_prompt

LEAD_INS = "answers_with_lead_ins"
"""Name in a tokenizer's configuration of the fact that its model wants the beginning of the answer in its prompt."""


class Turn(NamedTuple):
    """A question with its answer, as far as it was said."""

    question: str
    answer: str


@dataclass(frozen=True)
class Subject:
    """All that stands before the first question, and how it is put."""

    document: str | None = None
    style: PromptStyle = USUAL


def conversation_text(
    tokenizer: PreTrainedTokenizerBase, subject: Subject, turns: Sequence[Turn], question: str
) -> str:
    """A conversation up to a question, ready for the answer. Without turns it is the prompt of a document.

    Raises:
        PromptError: the chat template refuses it; a prompt template without a document.
    """
    style = subject.style
    if style.template is not None and subject.document is None:
        raise PromptError("a prompt template needs a document: give one, or leave the template out.")
    if not templated(tokenizer, style):
        return _plain(subject, turns, question, lead_ins(tokenizer))
    messages = []
    if style.system is not None and not style.places_system:
        messages.append({"role": "system", "content": style.system})
    for number, turn in enumerate(turns):
        messages += [_asked(subject, turn.question, number), {"role": "assistant", "content": turn.answer}]
    messages.append(_asked(subject, question, len(turns)))
    return chat_text(tokenizer, messages, style.day)


def answered(tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str, style: PromptStyle = USUAL) -> str:
    """A conversation's text with the answer that a model gave to it."""
    return f"{prompt}{answer}" if templated(tokenizer, style) else f"{prompt} {answer.strip()}"


def lead_ins(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the model wants the beginning of the answer in its plain prompts, as the bundled one does."""
    return getattr(tokenizer, "init_kwargs", {}).get(LEAD_INS) is True


def templated(tokenizer: PreTrainedTokenizerBase, style: PromptStyle = USUAL) -> bool:
    """True if a chat template writes the prompt, with the special tokens that it needs."""
    return style.chat_template and getattr(tokenizer, "chat_template", None) is not None


def on_one_day(tokenizer: PreTrainedTokenizerBase, style: PromptStyle, day: str) -> PromptStyle:
    """A style whose prompts are the same on every day: if its chat template tells the day, it will tell this one."""
    tells = templated(tokenizer, style) and tells_day(tokenizer.chat_template)
    return replace(style, day=day) if tells and style.day is None else style


def measured(tokenizer: PreTrainedTokenizerBase, style: PromptStyle) -> PromptStyle:
    """A style for measurements, which may go on, or be made again, on another day."""
    return on_one_day(tokenizer, style, MEASURED_DAY)


def chat_text(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], day: str | None = None) -> str:
    """Messages ("role", "content") as the chat template writes them, ready for the next answer.

    day: the one that the template tells, as in `PromptStyle`.

    Raises:
        PromptError: the template refuses them.
    """
    template = None if day is None else telling(tokenizer.get_chat_template(), day)
    try:
        return str(
            tokenizer.apply_chat_template(
                messages,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=True,
                # Models that think aloud would spend the whole answer on it; templates without the switch ignore it.
                enable_thinking=False,
            )
        )
    except TemplateError as problem:
        raise PromptError(
            f"The chat template of this model refuses the conversation: {problem}. Leave the system prompt out, or "
            "write it into the question."
        ) from None


def _asked(subject: Subject, question: str, earlier: int) -> dict[str, str]:
    """A question's message; the first one has the document."""
    content = question
    if subject.document is not None and not earlier:
        style = subject.style
        whole = style.template is None
        content = f"{subject.document}\n\n{question}" if whole else style.filled(subject.document, question)
    return {"role": "user", "content": content}


def _plain(subject: Subject, turns: Sequence[Turn], question: str, leads: bool) -> str:
    said = ""
    for number, each in enumerate((*turns, Turn(question, ""))):
        asked = _first(subject, each.question, leads) if not number else _behind(said, each.question, leads)
        said = f"{asked} {each.answer.strip()}"
    return asked


def _first(subject: Subject, question: str, leads: bool) -> str:
    """The first question with all that stands before it."""
    style, document = subject.style, subject.document
    before = style.system if style.system and not style.places_system else None
    if style.template is None or document is None:
        return _behind("\n\n".join(text for text in (before, document) if text), question, leads)
    # The user says where everything is, the beginning of the answer included.
    text = style.filled(document, question)
    return text if before is None else f"{before}\n\n{text}"


def _behind(said: str, question: str, leads: bool) -> str:
    """A question behind all that was said, if anything was."""
    text = (format_prompt if leads else plain_prompt)(said, question)
    return text if said else text.lstrip()
