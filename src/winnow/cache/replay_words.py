"""The words around a prompt that a model is to repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.errors import PromptError

FIRST = "\n\nRepeat the previous context exactly."
LATER = "\n\nRepeat the part of the previous context exactly, starting with"
REMINDER = 8
"""Last tokens of the chunk before, behind LATER."""
_MARK = "\n#############"
"""Stands where the user stops, as nothing else in a chat template does."""


class ReplayPart(NamedTuple):
    """A chunk of a prompt that is read again."""

    start: int
    stop: int
    """Tokens start … stop - 1 of the prompt."""
    tokens: Tensor
    """[n] all that is read: the request, the words before an answer, the chunk."""


class ReplayWords(NamedTuple):
    """The words of a replay, as tokens of one model."""

    first: Tensor
    """[n] the request to repeat the beginning."""
    later: Tensor
    """[n] the request to repeat what follows some tokens, which come behind it."""
    answer: Tensor
    """[n] what stands between the user's last word and the model's answer."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, chat_template: bool = True) -> ReplayWords:
        """The published words in the tokens of a model.

        chat_template: the prompt is written by the tokenizer's template, if it has one; otherwise a new line stands
        before the answer. Raises PromptError for a template that refuses a plain question.
        """
        answer = _before_answer(tokenizer) if chat_template else "\n"
        encoded = (tokenizer(text, add_special_tokens=False).input_ids for text in (FIRST, LATER, answer))
        return cls(*(torch.tensor(tokens, dtype=torch.int64, device="cpu") for tokens in encoded))

    @property
    def around(self) -> int:
        """Tokens that are read with a chunk, at most."""
        return max(len(self.first), len(self.later) + REMINDER) + len(self.answer)

    def parts(self, prompt: Tensor, chunk: int) -> Iterator[ReplayPart]:
        """The replay of a prompt [N], chunk by chunk."""
        for start in range(0, len(prompt), chunk):
            stop = min(start + chunk, len(prompt))
            reminder = prompt[max(0, start - min(REMINDER, chunk)) : start]
            request = torch.cat([self.later, reminder]) if start else self.first
            yield ReplayPart(start, stop, torch.cat([request, self.answer, prompt[start:stop]]))

    def tokens_read(self, length: int, chunk: int) -> int:
        """Tokens that the replay of a prompt of `length` tokens reads."""
        return sum(len(part.tokens) for part in self.parts(torch.zeros(length, dtype=torch.int64, device="cpu"), chunk))


def _before_answer(tokenizer: PreTrainedTokenizerBase) -> str:
    """The text between the user's last word and the model's answer."""
    if getattr(tokenizer, "chat_template", None) is None:
        return "\n"
    try:
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": f"text{_MARK}"}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
    except TemplateError as problem:
        raise PromptError(
            f"The chat template of this model refuses a request to repeat the prompt: {problem}. Use a method that "
            "reads the prompt once (keydiff, expectedattention)."
        ) from None
    found, _, answer = str(asked).rpartition(_MARK)
    if not found:
        raise PromptError(
            "The chat template of this model changes the user's message, so the text before an answer cannot be "
            "found. Use a method that reads the prompt once (keydiff, expectedattention)."
        )
    return answer
