"""One prompt or document under several methods, prefilled once for all of them."""

from __future__ import annotations

from torch import Tensor

from winnow.cache.context import Context
from winnow.composition.method import Method
from winnow.evaluate.answering import CompressedDocument, Prefilled
from winnow.evaluate.shared import DensePrompt


def prefilled_by(dense: DensePrompt, method: Method, prompt: Tensor, fold_every: int | None = None) -> Prefilled:
    """A dense prompt [1, N] as `read_with_question` would have left it; its time counts in full for every method."""
    compressed = dense.compress(method, fold_every)
    return Prefilled(
        compressed.cache,
        dense.logits,
        prompt.shape[1],
        dense.seconds + compressed.seconds,
        question_seen=True,
        remembered_seconds=compressed.remembered_seconds,
    )


def document_by(
    dense: DensePrompt, method: Method, tokens: Tensor, fold_every: int | None = None
) -> CompressedDocument:
    """A dense document [1, M] as `compress_document` would have left it; its time counts in full for every method."""
    compressed = dense.compress(method, fold_every)
    return CompressedDocument(
        Context(compressed.cache, tokens),
        tokens.shape[1],
        dense.seconds + compressed.seconds,
        remembered_seconds=compressed.remembered_seconds,
    )
