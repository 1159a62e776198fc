"""Validation questions for the bundled model: generated, and apart from those of every evaluation."""

from __future__ import annotations

from winnow.estimate.cokv.utility import Example
from winnow.estimate.errors import ShapleyError
from winnow.tasks import KINDS, generate_document

FIRST_DOCUMENT = 3_000_000
"""Evaluations draw their documents from seeds of one and two million."""
TOKENS = 512
COUNT = 24


def generated_examples(count: int = COUNT, tokens: int = TOKENS) -> tuple[Example, ...]:
    """Questions of all kinds in turn, four to a document, whose prompts have at most `tokens` tokens.

    Raises ShapleyError for fewer than one, or documents too short for a question of every kind.
    """
    if count < 1:
        raise ShapleyError(f"{count} validation examples are none: take at least one.")
    found: list[Example] = []
    for seed in range(FIRST_DOCUMENT, FIRST_DOCUMENT + -(-count // len(KINDS))):
        document = generate_document(seed, tokens, questions_per_kind=1)
        if len(document.questions) < len(KINDS):
            raise ShapleyError(f"Documents of {tokens} tokens are too short for questions of all kinds: take 256.")
        found += [Example(document.text, question.text, question.answer) for question in document.questions]
    return tuple(found[:count])
