"""The model of a chat, and how it reads the document under any method."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.context import compress
from winnow.cache.fold import check_foldable
from winnow.cache.replay import words_in
from winnow.commands.options.chat import FOLD_EVERY
from winnow.commands.prefill_progress import reading, tokens_read
from winnow.composition.method import Method
from winnow.errors import MethodError
from winnow.evaluate.conversation import Beginning
from winnow.evaluate.turns import Subject
from winnow.models import ModelSource
from winnow.models.devices import input_device


@dataclass(frozen=True)
class Reader:
    """A model with its subject."""

    source: ModelSource
    model: PreTrainedModel
    subject: Subject
    tokens: Tensor
    """[1, M] those that every prompt of the document begins with; M is 0 without a document."""
    chunk_size: int | None
    fold: int | None
    """As the user said; None for the default."""

    def read(self, method: Method) -> Beginning:
        """A beginning with the document, compressed by a method.

        Raises MethodError for one that cannot fold as asked, or lacks the head scores of this model.
        """
        every = fold_every(method, self.fold)
        if not self.tokens.shape[1]:
            empty = CompressedCache(self.model, method, fold_every=every, fold_turns=every)
            return Beginning(self.tokens, lambda: deepcopy(empty))
        tokens = self.tokens.to(input_device(self.model))
        words = words_in(self.source.tokenizer, self.subject.style.chat_template)
        with reading(self.model, tokens_read(method, tokens.shape[1], words)):
            # With both, a share is one of the conversation: a second document gets as much as the first.
            context = compress(
                self.model,
                tokens,
                method,
                chunk_size=self.chunk_size,
                fold_every=every,
                fold_turns=every,
                tokenizer=words,
            )
        return Beginning(self.tokens, context.cache)


def fold_every(method: Method, asked: int | None) -> int | None:
    """Tokens after which a conversation is folded; None where it never is.

    asked: 0 for never, None for the default where the method can. Raises MethodError where it cannot as asked.
    """
    if asked is None:
        try:
            check_foldable(method, FOLD_EVERY)
        except MethodError:
            return None
        return FOLD_EVERY
    if asked:
        check_foldable(method, asked)
    return asked or None
