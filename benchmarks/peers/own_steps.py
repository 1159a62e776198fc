"""Winnow's side: a model that reads prompts of random tokens, and its steps over their compressed caches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow import CompressedCache
from winnow.evaluate.decoding import prefill
from winnow.models import ModelSource, load_model
from winnow.models.weights import WEIGHTS

FULL, BITS_8, BITS_4, KEPT_5 = "full", "full+bits(8)", "full+bits(4)", "adakv @ 5%"
METHODS = (FULL, BITS_8, BITS_4, "adakv @ 10%", KEPT_5, "adakv @ 2%")
CHUNK = 2048
"""Tokens of a prompt that are read at a time, as many as llama-bench reads."""
WINDOW = 64
"""Last queries of a prompt that its methods may look at."""


@dataclass(frozen=True)
class OwnModel:
    """A model whose weights are loaded when they are needed."""

    source: ModelSource
    weights: str
    """A type, or what `load_model` takes as weights."""

    @cached_property
    def model(self) -> PreTrainedModel:
        """With its weights. Raises ModelError."""
        if self.weights in WEIGHTS:
            return load_model(self.source, "cpu", weights=self.weights)
        return load_model(self.source, "cpu", self.weights)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all weights, those of quantized layers among them; shared ones count once."""
        return sum(each.nbytes for each in (*self.model.parameters(), *self.model.buffers()))

    def read(self, depth: int, threads: int) -> tuple[CompressedCache, float]:
        """A prompt of random tokens that waits for its compression, and the milliseconds of reading it.

        depth: tokens; 0 stands for a prompt of one, as there is no step without any.
        """
        torch.set_num_threads(threads)
        tokens = torch.randint(
            self.model.config.vocab_size, (1, depth or 1), generator=torch.Generator().manual_seed(0)
        )
        cache = CompressedCache(
            self.model, FULL, prompt_length=tokens.shape[1], defer=True, waiting_queries=min(WINDOW, tokens.shape[1])
        )
        begin = time.perf_counter()
        prefill(self.model, tokens, cache, chunk_size=CHUNK)
        return cache, 1000 * (time.perf_counter() - begin)

    def token(self, cache: CompressedCache, threads: int, steps: int) -> float:
        """Mean milliseconds of `steps` tokens of random text, after one that is not timed; all are taken back."""
        torch.set_num_threads(threads)
        tokens = torch.randint(self.model.config.vocab_size, (steps + 1, 1, 1))
        self._step(tokens[0], cache)
        begin = time.perf_counter()
        for token in tokens[1:]:
            self._step(token, cache)
        mean = 1000 * (time.perf_counter() - begin) / steps
        cache.crop(-len(tokens))
        return mean

    @torch.no_grad()
    def _step(self, token: Tensor, cache: CompressedCache) -> None:
        self.model(input_ids=token, past_key_values=cache, use_cache=True)
