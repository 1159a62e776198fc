"""Texts that are too long for a model, without their middle."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from winnow.errors import PromptError
from winnow.evaluate.example_prompts import cut_to_fit, middle_of
from winnow.evaluate.prompts import encode_prompt
from winnow.tasks.prompt_style import USUAL, PromptStyle


def without_middle(
    tokenizer: PreTrainedTokenizerBase, document: str, questions: Sequence[str], most: int, style: PromptStyle = USUAL
) -> str:
    """The document, without its middle where the longest of its prompts would have more than `most` tokens.

    First and last half of document and question together stay, as LongBench cuts (Bai et al. 2023).

    Raises:
        PromptError: a question takes more than half of what may stay; a tokenizer that does not know the characters of
            its tokens.
    """
    lengths = {question: encode_prompt(tokenizer, document, question, style).shape[1] for question in questions}
    longest = max(lengths, key=lambda question: lengths[question])
    excess = lengths[longest] - most
    if excess <= 0:
        return document
    return cut_to_fit(
        lambda more: _cut(tokenizer, document, longest, excess + more),
        lambda shorter: encode_prompt(tokenizer, shorter, longest, style).shape[1] - most,
    )


def _cut(tokenizer: PreTrainedTokenizerBase, document: str, question: str, excess: int) -> str:
    text = document + question
    tokens = len(tokenizer(text, add_special_tokens=True).input_ids)
    cut = middle_of(tokenizer, text, tokens - excess) if tokens > excess else None
    if cut is None or cut.stop > len(document):
        raise PromptError(
            "the question takes more than half of the longest prompt that the model reads, so the middle of the text "
            "cannot be left out: shorten the question."
        )
    return document[: cut.start] + document[cut.stop :]
