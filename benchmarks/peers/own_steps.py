"""Winnow's caches: a model that reads prompts of random tokens, and its steps over what methods leave of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedModel

from measured import Engine
from winnow import CompressedCache, step_graphs
from winnow.evaluate.decoding import prefill
from winnow.models import ModelSource, load_model
from winnow.models.weights import WEIGHTS

FULL, BITS_8, BITS_4, KEPT_5 = "full", "full+bits(8)", "full+bits(4)", "adakv @ 5%"
METHODS = (FULL, BITS_8, BITS_4, "adakv @ 10%", KEPT_5, "adakv @ 2%")
CHUNK = 2048
"""Tokens of a prompt that are read at a time, as many as llama-turns reads."""
WINDOW = 64
"""Last queries of a prompt that its methods may look at."""
WARM_UP = 4
"""Tokens up to the first that is replayed as all later ones are."""


@dataclass(frozen=True)
class OwnPrompt:
    """A prompt that was read and waits for its compression."""

    waiting: CompressedCache
    ms: float
    """Milliseconds of reading it."""

    @cached_property
    def compressed(self) -> dict[str, CompressedCache]:
        """The prompt under every method."""
        return {method: self.waiting.compressed_by(method) for method in METHODS}


@dataclass(frozen=True)
class OwnModel:
    """A model whose weights are loaded when they are needed."""

    source: ModelSource
    weights: str
    """A type, or what `load_model` takes as weights."""
    threads: int
    """With which it reads its prompts."""

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

    @cached_property
    def prompts(self) -> dict[int, OwnPrompt]:
        """Those that were read, by depth."""
        return {}

    def prompt(self, depth: int) -> OwnPrompt:
        """The prompt of a depth, which is read once."""
        if depth not in self.prompts:
            self.prompts[depth] = self._read(depth)
        return self.prompts[depth]

    def _read(self, depth: int) -> OwnPrompt:
        """A prompt of random tokens. depth: 0 stands for a prompt of one, as there is no step without any."""
        torch.set_num_threads(self.threads)
        tokens = torch.randint(
            self.model.config.vocab_size, (1, depth or 1), generator=torch.Generator().manual_seed(0)
        )
        cache = CompressedCache(
            self.model, FULL, prompt_length=tokens.shape[1], defer=True, waiting_queries=min(WINDOW, tokens.shape[1])
        )
        begin = time.perf_counter()
        prefill(self.model, tokens, cache, chunk_size=CHUNK)
        return OwnPrompt(cache, 1000 * (time.perf_counter() - begin))

    def token(self, cache: CompressedCache, threads: int, steps: int) -> float:
        """Mean milliseconds of `steps` tokens of random text, after a few that are not timed; all are taken back.

        Those few make room and capture a step, as the first of every answer do.
        """
        torch.set_num_threads(threads)
        tokens = torch.randint(self.model.config.vocab_size, (WARM_UP + steps, 1, 1))
        with step_graphs(self.model, len(tokens)):
            for token in tokens[:WARM_UP]:
                self._step(token, cache)
            begin = time.perf_counter()
            for token in tokens[WARM_UP:]:
                self._step(token, cache)
            mean = 1000 * (time.perf_counter() - begin) / steps
        cache.crop(-len(tokens))
        return mean

    @torch.no_grad()
    def _step(self, token: Tensor, cache: CompressedCache) -> None:
        self.model(input_ids=token, cache=cache, use_cache=True)


@dataclass(frozen=True)
class OwnCache:
    """A method's cache on a model."""

    own: OwnModel
    method: str

    @property
    def engine(self) -> Engine:
        return "winnow"

    @property
    def cache(self) -> str:
        return self.method

    @property
    def weights(self) -> str:
        return self.own.weights

    @property
    def weight_bytes(self) -> int:
        return self.own.weight_bytes

    def cache_bytes(self, depth: int) -> int:
        return self._cache(depth).stats().held_bytes

    def prompt(self, depth: int) -> float:
        return self.own.prompt(depth).ms

    def token(self, depth: int, threads: int, steps: int) -> float:
        return self.own.token(self._cache(depth), threads, steps)

    def _cache(self, depth: int) -> CompressedCache:
        return self.own.prompt(depth).compressed[self.method]
