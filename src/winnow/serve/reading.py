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

    def __init__(
        self,
        asked: Asked,
        tokens: list[int],
        cache: CompressedCache,
        waited_seconds: float,
        shared: int = 0,
        keep: Callable[[CompressedCache], None] | None = None,
    ) -> None:
        """A reading that goes on behind what its cache holds.

        shared: tokens after which the cache is given to `keep`, and a fork of it takes the rest; 0 for none.
        """
        self.asked = asked
        self.tokens = tokens
        self.cache = cache
        self.held = cache.get_seq_length()
        self.waited_seconds = waited_seconds
        self.began = time.monotonic()
        self.read = self.held
        """Tokens that the cache holds by now."""
        self._shared = shared
        self._keep = keep
        # Behind a prompt that is whole, pieces would be folded one by one.
        behind = any(layer.compressed or layer.waiting for layer in cache.compressed_layers())
        self._comes_whole = behind and cache.compression.folds

    def go_on(self, model: PreTrainedModel, piece: int | None, check: Callable[[], None]) -> Tensor | None:
        """Reads the next `piece` tokens, or all that are left; returns the logits [V] after the last one.

        check: called after every layer, as a long prompt takes minutes. What it raises ends the reading for good.
        """
        stop = self._stop(piece)
        tokens = torch.tensor([self.tokens[self.read : stop]], device="cpu")
        with layers_watched(model, lambda _: check()):
            logits = prefill(model, tokens, self.cache)
        self.read = stop
        if stop == self._shared and self._keep is not None:
            self._keep(self.cache)
            self.cache = self.cache.extended(len(self.tokens))
        return logits if stop == len(self.tokens) else None

    def _stop(self, piece: int | None) -> int:
        """Tokens that are read after the next step."""
        most = len(self.tokens)
        if self._comes_whole:
            return most
        stop = most if piece is None else min(self.read + piece, most)
        # A single token that is left before it would look like the first of an answer.
        return self._shared if self.read < self._shared <= stop + 1 else stop
