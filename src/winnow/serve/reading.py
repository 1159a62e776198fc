"""A prompt that is being read, whole or piece by piece while others are answered."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.evaluate.decoding import prefill
from winnow.evaluate.layer_steps import layers_watched
from winnow.serve.asked import Asked


class Reading:
    """The tokens of a prompt, of which a cache holds the first."""

    def __init__(self, asked: Asked, tokens: list[int], cache: CompressedCache, waited_seconds: float) -> None:
        self.asked = asked
        self.tokens = tokens
        self.cache = cache
        self.held = cache.get_seq_length()
        self.waited_seconds = waited_seconds
        self.began = time.monotonic()
        self._read = self.held

    def go_on(self, model: PreTrainedModel, piece: int | None, check: Callable[[], None]) -> Tensor | None:
        """Reads the next `piece` tokens, or all that are left; returns the logits [V] after the last one.

        check: called after every layer, as a long prompt takes minutes. What it raises ends the reading for good.
        """
        # What comes behind something compressed comes whole: pieces of it would be folded one by one.
        stop = len(self.tokens) if self.held or piece is None else self._read + piece
        tokens = torch.tensor([self.tokens[self._read : stop]], device="cpu")
        with layers_watched(model, lambda _: check()):
            logits = prefill(model, tokens, self.cache)
        self._read = stop
        return logits if stop >= len(self.tokens) else None
