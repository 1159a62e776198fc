"""A document with questions, and its prompts."""

from __future__ import annotations

from winnow.evaluate.prompts import encode_prompt
from winnow.tasks import generate_document

DOCUMENT = generate_document(3, tokens=200, questions_per_kind=1)


def encoded(source, index=0):
    return encode_prompt(source.tokenizer, DOCUMENT.text, DOCUMENT.questions[index].text)
