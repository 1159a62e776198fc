"""Prompts of questions: in a style, or as a benchmark's protocol puts them."""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.evaluate.example_prompts import context_tokens, example_tokens
from winnow.evaluate.prompts import document_tokens, encode_prompt
from winnow.evaluate.turns import measured
from winnow.tasks.prompt_style import PromptStyle
from winnow.tasks.put import Put


def asked_tokens(
    tokenizer: PreTrainedTokenizerBase, document: str, question: str, style: PromptStyle, put: Put | None
) -> Tensor:
    """[1, N] tokens, ready for the answer; the style counts where no protocol puts the question."""
    if put is None:
        return encode_prompt(tokenizer, document, question, measured(tokenizer, style))
    return example_tokens(tokenizer, put.example(document, question), put.judging.chat_template)


def tokens_before_question(
    tokenizer: PreTrainedTokenizerBase,
    document: str,
    question: str,
    prompt: Tensor,
    style: PromptStyle,
    put: Put | None,
) -> int:
    """Tokens at the start of a prompt [1, N] that tell nothing of its question."""
    if put is None:
        return document_tokens(tokenizer, document, [prompt], measured(tokenizer, style))
    return context_tokens(tokenizer, put.example(document, question), [prompt], put.judging.chat_template)
