"""Prompts as tokens: the chat template of a tokenizer that has one, a plain form for all others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.tasks import format_prompt


def encode_prompt(tokenizer: PreTrainedTokenizerBase, document: str, question: str) -> Tensor:
    """[1, N] tokens of a document followed by a question, ready for the answer."""
    text, special = prompt_text(tokenizer, document, question)
    encoded: Tensor = tokenizer(text, add_special_tokens=special, return_tensors="pt").input_ids
    return encoded


def prompt_text(tokenizer: PreTrainedTokenizerBase, document: str, question: str) -> tuple[str, bool]:
    """The text of such a prompt, and whether the tokenizer has to add its special tokens."""
    if getattr(tokenizer, "chat_template", None) is None:
        return format_prompt(document, question), True
    message = {"role": "user", "content": f"{document}\n\n{question}"}
    # Models that think aloud would spend the whole answer on it; templates without the switch ignore it.
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True, enable_thinking=False)
    return str(text), False


def document_tokens(tokenizer: PreTrainedTokenizerBase, document: str, prompts: Sequence[Tensor]) -> int:
    """Tokens at the start of every prompt that tell nothing of its question.

    Counted against the prompt of an empty question: a text cut at the document's end need not be cut between
    tokens, and templates may put words around it.
    """
    blank = encode_prompt(tokenizer, document, "")
    return min(common_start([blank, *prompts]), *(prompt.shape[1] - 1 for prompt in prompts))


def common_start(prompts: Sequence[Tensor]) -> int:
    """Tokens that all prompts [1, N] begin with."""
    columns = zip(*(prompt[0].tolist() for prompt in prompts), strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
