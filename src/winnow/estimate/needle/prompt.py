"""A needle in its haystack as tokens, with the place of the needle's span among them.

The span is found by the character offsets that the tokenizer gives with its tokens. (The published script finds it
through a start token that it puts before the needle by accident.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from winnow.estimate.errors import NeedleError
from winnow.estimate.needle.examples import NeedleExample
from winnow.estimate.needle.haystack import with_needle
from winnow.evaluate.prompts import prompt_text
from winnow.evaluate.turns import measured
from winnow.tasks.prompt_style import USUAL, PromptStyle
from winnow.tasks.prompts import normalize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Span:
    """Token positions start <= i < stop that a head gets a score for looking at."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """N of the equations."""
        return self.stop - self.start

    @property
    def inside(self) -> slice:
        """For taking the span's part of a sequence."""
        return slice(self.start, self.stop)


class Prompt(NamedTuple):
    """Tokens [n] of a haystack with its needle and question, and the place of the span."""

    tokens: Tensor
    span: Span


def require_offsets(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises NeedleError where the tokenizer cannot say which characters a token stands for."""
    if not getattr(tokenizer, "is_fast", False):
        raise NeedleError(
            f"{type(tokenizer).__name__} does not map tokens to characters, so the needle's tokens cannot be found: "
            "use "
            'a model with a "fast" tokenizer (tokenizer.json).'
        )


def build_prompt(
    tokenizer: PreTrainedTokenizerBase,
    example: NeedleExample,
    sentences: Sequence[str],
    before: int,
    style: PromptStyle = USUAL,
) -> Prompt:
    """The prompt with the needle after `before` sentences.

    Raises NeedleError where the span is not found in the tokens: a template that changes the text, or a tokenizer
    that does not know the needle's words.
    """
    document, needle_start = with_needle(sentences, example.needle, before)
    text, special = prompt_text(tokenizer, document, example.question, measured(tokenizer, style))
    document_start = text.find(document)
    if document_start < 0:
        raise NeedleError("The model's chat template changes the text, so the needle cannot be found in the prompt.")
    start = document_start + needle_start + example.needle.index(example.span)
    encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
    span = locate(encoded["offset_mapping"], start, start + len(example.span))
    tokens = torch.tensor(encoded["input_ids"], device="cpu")
    if span is None or normalize(example.span) not in normalize(tokenizer.decode(tokens[span.inside])):
        raise NeedleError(
            f"The tokens of the model do not hold the needle {_short(example.span)!r}: its tokenizer does not know the "
            "words, or gives wrong offsets. Give other --examples, or choose with --forms."
        )
    return Prompt(tokens, span)


def locate(offsets: Sequence[tuple[int, int]], start: int, stop: int) -> Span | None:
    """The tokens that hold any of the characters [start, stop), or None; tokens without characters are no part."""
    inside = [index for index, (a, b) in enumerate(offsets) if a < stop and b > start and a < b]
    return Span(inside[0], inside[-1] + 1) if inside else None


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
