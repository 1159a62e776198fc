"""The style of a prompt: everything about its text that is neither the document nor the question."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
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
    """The way in which a document and a question become a prompt.

    Raises PromptError for a template that cannot be filled.
    """

    chat_template: bool = True
    """True: the tokenizer's own, where it has one. False: plain text for every model."""
    system: str | None = None
    """Instructions for the model, in the chat template's system role; without one the text stands before the
    document. An empty one takes the place of the chat template's own."""
    template: str | None = None
    """Text of a first question with its document, with places for {document}, {question} and, if you like, {system};
    inside the chat template, where one is used. None: document, blank line, question, or a plain form of it."""

    def __post_init__(self) -> None:
        if self.template is not None:
            _check(self.template)

    @property
    def places_system(self) -> bool:
        """True if the template says where the system prompt goes."""
        return self.template is not None and "system" in _PLACE.findall(self.template)

    def filled(self, document: str, question: str) -> str:
        """The template with its places filled; what is filled in is not looked at again."""
        assert self.template is not None
        texts = {"document": document, "question": question, "system": self.system or ""}
        return _PLACE.sub(lambda place: texts[place[1]], self.template)

    def check_question_last(self) -> None:
        """Raises PromptError where the document cannot be read before a question is known."""
        if self.template is not None and self.template.index("{question}") < self.template.index("{document}"):
            raise PromptError(
                "the prompt template has {question} before {document}, so nothing of the document can be read before "
                "the question is known: put {document} first."
            )

    def facts(self) -> dict[str, Any]:
        """Everything that is not as usual, as plain values for files."""
        usual = asdict(PromptStyle())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    def named_facts(self) -> dict[str, Any]:
        """The same under one name, for journals and settings; nothing where all is as usual, as in those of before."""
        return {FACTS: facts} if (facts := self.facts()) else {}

    @classmethod
    def of_facts(cls, facts: object, origin: str) -> PromptStyle:
        """The style of `facts`. Raises PromptError, naming the origin, for what no style has."""
        try:
            return read_as(cls, facts)
        except TypedError as problem:
            raise PromptError(f"the prompt style of {origin} cannot be read: {problem}.") from None


USUAL = PromptStyle()
"""The chat template where there is one, nothing else."""


def _check(template: str) -> None:
    """Raises PromptError unless a template has a place for document and question, once, and no unknown ones."""
    found = _PLACE.findall(template)
    for name in found:
        if name not in _KNOWN:
            raise PromptError(
                f"the prompt template has a place {{{name}}}, which nothing fills; there are {{document}}, "
                "{question} and {system}."
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
