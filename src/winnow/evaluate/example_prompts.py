"""Prompts of benchmark examples: their text as it is, inside a chat template where the protocol wants one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.errors import PromptError
from winnow.evaluate.prompts import common_start
from winnow.evaluate.told_day import MEASURED_DAY
from winnow.evaluate.turns import chat_text, templated
from winnow.tasks.example import Example

Text = TypeVar("Text")

_TRIES = 8
"""Cuts, each a little larger: what is left may be cut into other tokens than before."""


class PromptRules(NamedTuple):
    """Everything about prompts that is the same for all examples of a task."""

    chat_template: bool
    """True: the model's own, where it has one."""
    limit: int | None
    """Tokens of a prompt's plain text at most; None for any number."""
    room: int | None
    """Tokens of a whole prompt at most, with template and answer prefix; None for any number."""


class Fitted(NamedTuple):
    """An example whose prompt keeps to the rules."""

    example: Example
    truncated: bool
    """True if the text lost its middle."""


def fitted(tokenizer: PreTrainedTokenizerBase, example: Example, rules: PromptRules) -> Fitted:
    """The example, without the middle of its text where that is too long: its first and last half stay.

    Raises:
        PromptError: there is no room for any text; the chat template refuses it; the tokenizer does not know the
            characters of its tokens.
    """
    limits = [limit for limit in (rules.limit, _room_for_text(tokenizer, example, rules)) if limit is not None]
    if not limits:
        return Fitted(example, truncated=False)
    return cut_to_fit(
        lambda excess: _without_middle(tokenizer, example, min(limits) - excess),
        lambda shorter: _tokens_over(tokenizer, shorter.example, rules),
    )


def cut_to_fit(cut: Callable[[int], Text], over: Callable[[Text], int]) -> Text:
    """The text that `cut(excess)` leaves, with `excess` growing by the tokens that are too many, `over(text)`.

    Raises PromptError where it stays too long.
    """
    excess = 0
    for _ in range(_TRIES):
        shorter = cut(excess)
        too_many = over(shorter)
        if too_many <= 0:
            return shorter
        excess += too_many
    raise PromptError("this text cannot be cut to a prompt that is short enough: shorten it.")


def _without_middle(tokenizer: PreTrainedTokenizerBase, example: Example, limit: int) -> Fitted:
    text = example.context + example.question
    cut = middle_of(tokenizer, text, limit)
    if cut is None:
        return Fitted(example, truncated=False)
    # The question stays a question, and where it is longer than half of all, its end does.
    begin = max(cut.stop, len(example.context))
    context = text[: cut.start] + text[cut.stop : begin]
    return Fitted(replace(example, context=context, question=text[begin:]), truncated=True)


def middle_of(tokenizer: PreTrainedTokenizerBase, text: str, limit: int) -> slice | None:
    """Characters to leave out of a text of more than `limit` tokens, between its halves; None for a shorter one.

    As LongBench cuts (Bai et al. 2023): special tokens that the tokenizer puts before a text count.

    Raises:
        PromptError: nothing would be left; the tokenizer does not know the characters of its tokens ("fast" ones do).
    """
    special = tokenizer.num_special_tokens_to_add()
    if len(tokenizer(text, add_special_tokens=False).input_ids) + special <= limit:
        return None
    if not tokenizer.is_fast:
        raise PromptError(
            f"{type(tokenizer).__name__} does not map tokens to characters, so the middle of a text cannot be left "
            "out: "
            'use a model with a "fast" tokenizer (tokenizer.json), or shorten the text.'
        )
    places = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
    half = limit // 2
    if half <= special:
        raise PromptError(f"A limit of {limit} tokens leaves nothing of a prompt: give a larger one.")
    # From the end of the token before: tokens of some tokenizers do not have the blank in front of them.
    return slice(places[half - special - 1][1], places[-half - 1][1])


def example_tokens(tokenizer: PreTrainedTokenizerBase, example: Example, chat_template: bool) -> Tensor:
    """[1, N] tokens of context, question and answer prefix, ready for the answer."""
    return _encoded(tokenizer, example.context + example.question, example.answer_prefix, chat_template)


def context_tokens(
    tokenizer: PreTrainedTokenizerBase, example: Example, prompts: Sequence[Tensor], chat_template: bool
) -> int:
    """Tokens at the start of all prompts [1, N] of examples that share a context, which tell nothing of the questions.

    Counted against the prompt of the context alone: a text cut at the context's end need not be cut between tokens.
    """
    alone = _encoded(tokenizer, example.context, "", chat_template)
    return min(common_start([alone, *prompts]), *(each.shape[1] - 1 for each in prompts))


def _tokens_over(tokenizer: PreTrainedTokenizerBase, example: Example, rules: PromptRules) -> int:
    """Tokens of the whole prompt beyond the room that it has."""
    return 0 if rules.room is None else example_tokens(tokenizer, example, rules.chat_template).shape[1] - rules.room


def _room_for_text(tokenizer: PreTrainedTokenizerBase, example: Example, rules: PromptRules) -> int | None:
    """Tokens that template and answer prefix leave for the plain text with its special tokens."""
    if rules.room is None:
        return None
    around = _encoded(tokenizer, "", example.answer_prefix, rules.chat_template).shape[1]
    return rules.room - around + tokenizer.num_special_tokens_to_add()


def _encoded(tokenizer: PreTrainedTokenizerBase, text: str, answer_prefix: str, chat_template: bool) -> Tensor:
    written = chat_template and templated(tokenizer)
    asked = chat_text(tokenizer, [{"role": "user", "content": text}], MEASURED_DAY) if written else text
    whole = asked + answer_prefix
    encoded: Tensor = tokenizer(whole, add_special_tokens=not written, return_tensors="pt").input_ids
    # Of an empty text there are none, and they have no type.
    return encoded.long()
