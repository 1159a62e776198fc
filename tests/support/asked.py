"""A document with questions, its prompts, and the command that asks about it."""

from __future__ import annotations

from winnow.evaluate.prompts import encode_prompt
from winnow.tasks import generate_document

DOCUMENT = generate_document(3, tokens=200, questions_per_kind=1)
QUESTION = DOCUMENT.questions[0]
ASK_RUN = ("run", "--document", "document.txt", "--question", QUESTION.text, "--max-new-tokens", "4")


def encoded(source, index=0):
    return encode_prompt(source.tokenizer, DOCUMENT.text, DOCUMENT.questions[index].text)
