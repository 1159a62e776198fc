"""Prompt styles from options, and texts cut to what a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from winnow.commands.console import messages
from winnow.commands.inputs import InputError, read_text
from winnow.commands.options.shared import PromptOptions
from winnow.errors import PromptError
from winnow.evaluate.truncation import without_middle
from winnow.models import ModelSource
from winnow.tasks.prompt_style import USUAL, PromptStyle

QUESTION_ROOM = 512
"""Tokens that a text without its middle leaves for a question that is not known yet, and its answer."""


def style_of(options: PromptOptions, saved: PromptStyle = USUAL) -> PromptStyle:
    """The style that options ask for; what they leave open is as in a saved one.

    Raises InputError for a prompt template that cannot be read or filled.
    """
    style = saved
    if options.system is not None:
        style = replace(style, system=options.system)
    if options.no_chat_template:
        style = replace(style, chat_template=False)
    if options.prompt_template is not None:
        # Editors end files with a line break that is no part of the prompt.
        text = read_text(str(options.prompt_template)).rstrip("\r\n")
        try:
            style = replace(style, template=text)
        except PromptError as problem:
            raise InputError(f"{options.prompt_template}: {problem}") from None
    return style


def question_room(source: ModelSource) -> int:
    """Tokens to leave for a question and its answer behind a document; fewer where the model reads few."""
    return QUESTION_ROOM if source.context is None else min(QUESTION_ROOM, source.context // 4)


def shortened(
    source: ModelSource, document: str, questions: Sequence[str], style: PromptStyle, room: int, subject: str
) -> str:
    """A document without its middle where prompts of it leave less than `room` tokens; says so on standard error.

    subject: what is too long ("The document"). Raises PromptError where there is no such text.
    """
    if source.context is None:
        return document
    most = source.context - min(room, source.context // 2)
    cut = without_middle(source.tokenizer, document, questions, most, style)
    if cut != document:
        messages().print(
            f"{subject} is too long for {most:,} tokens: {len(document) - len(cut):,} of its {len(document):,} "
            "characters are left out of the middle.",
            markup=False,
            soft_wrap=True,
        )
    return cut
