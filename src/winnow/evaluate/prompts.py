"""Prompts as tokens: the chat template of a tokenizer that has one, a plain form for all others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.evaluate.turns import Subject, conversation_text, templated
from winnow.tasks.prompt_style import USUAL, PromptStyle


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, document: str, question: str, style: PromptStyle = USUAL
) -> Tensor:
    """[1, N] tokens of a document followed by a question, ready for the answer; see `prompt_text`."""
    text, special = prompt_text(tokenizer, document, question, style)
    encoded: Tensor = tokenizer(text, add_special_tokens=special, return_tensors="pt").input_ids
    return encoded


def prompt_text(
    tokenizer: PreTrainedTokenizerBase, document: str, question: str, style: PromptStyle = USUAL
) -> tuple[str, bool]:
    """The text of such a prompt, and whether the tokenizer has to add its special tokens.

    Raises:
        PromptError: the chat template has no place for the system prompt.
    """
    text = conversation_text(tokenizer, Subject(document, style), (), question)
    return text, not templated(tokenizer, style)


def document_tokens(
    tokenizer: PreTrainedTokenizerBase, document: str, prompts: Sequence[Tensor], style: PromptStyle = USUAL
) -> int:
    """Tokens at the start of every prompt that tell nothing of its question.

    Counted against the prompt of an empty question: a text cut at the document's end need not be cut between
    tokens, and templates may put words around it.
    """
    blank = encode_prompt(tokenizer, document, "", style)
    return min(common_start([blank, *prompts]), *(prompt.shape[1] - 1 for prompt in prompts))


def common_start(prompts: Sequence[Tensor]) -> int:
    """Tokens that all prompts [1, N] begin with."""
    shortest = min(prompt.shape[1] for prompt in prompts)
    first, *others = (prompt[0, :shortest] for prompt in prompts)
    alike = torch.ones_like(first, dtype=torch.bool)
    for other in others:
        alike &= first == other
    return int(alike.cumprod(0).sum())
