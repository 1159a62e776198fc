"""The subject of `winnow inspect`: a prompt, with the place of the answer where that is known."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.bundled import DOCUMENT_PATH, QUESTIONS_PATH
from winnow.commands.checks import check_context
from winnow.commands.inputs import read_document
from winnow.evaluate.facts import fact_tokens
from winnow.evaluate.prompts import document_tokens, encode_prompt
from winnow.evaluate.turns import templated
from winnow.models import ModelSource
from winnow.tasks import Question, read_questions
from winnow.tasks.prompt_style import PromptStyle

# Any question will do to find where a document ends.
_PLACEHOLDER = "What is it?"


class Inspected(NamedTuple):
    """A prompt to look into."""

    prompt: Tensor
    """[1, N]"""
    document: str
    question: str | None
    """None where the document stands alone."""
    facts: list[tuple[int, int]]
    """[start, stop) of the tokens that the answer needs; empty where the answer is not known."""

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Document and question, each after what it is."""
        asked = [] if self.question is None else [("the question", self.question)]
        return [("the document", self.document), *asked]


def read_inspected(source: ModelSource, document: str | None, question: str | None, style: PromptStyle) -> Inspected:
    """A document (the bundled one for None) with a question (for the bundled document: its first one), as tokens.

    Raises InputError where there is no text, or more than the model reads.
    """
    text = DOCUMENT_PATH.read_text(encoding="utf-8") if document is None else read_document(document)
    if document is None:
        asked = _bundled_question(question)
        prompt = encode_prompt(source.tokenizer, text, asked.text, style)
        found = Inspected(prompt, text, asked.text, _facts(source.tokenizer, text, asked, style))
    elif question is None:
        found = Inspected(_document_alone(source.tokenizer, text, style), text, None, [])
    else:
        found = Inspected(encode_prompt(source.tokenizer, text, question, style), text, question, [])
    check_context(source, found.prompt.shape[1], "The prompt", room=0)
    return found


def _bundled_question(text: str | None) -> Question:
    """The first bundled question, or the one with this text; a question of the user's own has no known answer."""
    questions = read_questions(QUESTIONS_PATH)
    own = [] if text is None else [Question("own", text, "")]
    return next(question for question in (*questions, *own) if text in (None, question.text))


def _facts(
    tokenizer: PreTrainedTokenizerBase, document: str, question: Question, style: PromptStyle
) -> list[tuple[int, int]]:
    """Positions are known in plain prompts, of tokenizers that know the characters of their tokens."""
    plain = not templated(tokenizer, style) and tokenizer.is_fast
    return fact_tokens(tokenizer, document, question, style) if plain and question.answer else []


def _document_alone(tokenizer: PreTrainedTokenizerBase, document: str, style: PromptStyle) -> Tensor:
    style.check_question_last()
    prompt = encode_prompt(tokenizer, document, _PLACEHOLDER, style)
    return prompt[:, : document_tokens(tokenizer, document, [prompt], style)]
