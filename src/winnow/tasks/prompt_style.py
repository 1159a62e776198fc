"""The style of a prompt: everything about its text that is neither the document nor the question."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from winnow.errors import PromptError
from winnow.typed import TypedError, read_as

FACTS = "prompt"
"""Name of a style's facts in files."""
_PLACE = re.compile(r"\{(\w+)\}")
_NEEDED = ("document", "question")
_KNOWN = (*_NEEDED, "system")


@dataclass(frozen=True)
class PromptStyle:
    """The form of a prompt: chat template, system prompt and template around a document and a question.

    Raises PromptError for a template that cannot be filled, and for a day that is none.
    """

    chat_template: bool = True
    """True: use the tokenizer's chat template, if it has one. False: plain text for every model."""
    system: str | None = None
    """Instructions for the model, in the chat template's system role, or before the document if it has none. An empty
    text replaces the chat template's own instructions."""
    template: str | None = None
    """Text of the first question with its document. It contains {document}, {question} and, optionally, {system}, and
    goes inside the chat template, if one is used. None: document, blank line, question, or a plain form of it."""
    day: str | None = None
    """The day that a chat template tells the model, as in ISO 8601: "2026-11-27". None: today."""

    def __post_init__(self) -> None:
        if self.template is not None:
            _check(self.template)
        if self.day is not None:
            _check_day(self.day)

    @property
    def places_system(self) -> bool:
        """True if the template says where the system prompt goes."""
        return self.template is not None and "system" in _PLACE.findall(self.template)

    def filled(self, document: str, question: str) -> str:
        """The template with its places filled. Braces in the document and the question are left alone."""
        assert self.template is not None
        texts = {"document": document, "question": question, "system": self.system or ""}
        return _PLACE.sub(lambda place: texts[place[1]], self.template)

    def check_question_last(self) -> None:
        """Raises PromptError if the question comes first: the document then cannot be read before it is known."""
        if self.template is not None and self.template.index("{question}") < self.template.index("{document}"):
            raise PromptError(
                "the prompt template has {question} before {document}, so nothing of the document can be read before "
                "the question is known: put {document} first."
            )

    def facts(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as plain values for files."""
        usual = asdict(PromptStyle())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    def named_facts(self) -> dict[str, Any]:
        """The same under one name, for journals and settings; empty if all fields have their defaults."""
        return {FACTS: facts} if (facts := self.facts()) else {}

    @classmethod
    def of_facts(cls, facts: object, origin: str) -> PromptStyle:
        """The style that has these `facts`. Raises PromptError, naming the origin, for facts that no style has."""
        try:
            return read_as(cls, facts)
        except TypedError as problem:
            raise PromptError(f"the prompt style of {origin} cannot be read: {problem}.") from None


USUAL = PromptStyle()
"""The chat template where there is one, nothing else."""


def _check_day(day: str) -> None:
    try:
        date.fromisoformat(day)
    except ValueError:
        raise PromptError(f"{day!r} is no day; write one as 2026-11-27.") from None


def _check(template: str) -> None:
    """Raises PromptError unless a template has a place for document and question, once, and no unknown ones."""
    found = _PLACE.findall(template)
    for name in found:
        if name not in _KNOWN:
            raise PromptError(
                f"the prompt template has an unknown place {{{name}}}; the known ones are {{document}}, {{question}} "
                "and {system}."
            )
    for name in _KNOWN:
        if found.count(name) > 1:
            raise PromptError(f"the prompt template has {{{name}}} {found.count(name)} times; keep one.")
    for name in _NEEDED:
        if name not in found:
            raise PromptError(
                f"the prompt template has no {{{name}}}: write {{document}} where the document goes, and {{question}} "
                "where the question does."
            )
