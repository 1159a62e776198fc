"""Questions about one context that go side by side: as many as free memory has room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from winnow.cache.hybrid import heads_of
from winnow.cache.layer_config import fact_of, most_query_heads
from winnow.cache.tail import FIRST_CAPACITY, GROWTH
from winnow.composition.method import Method
from winnow.evaluate.prompt_bytes import prompt_bytes
from winnow.evaluate.shared import queries_of
from winnow.models.devices import free_memory

MOST, MOST_ON_A_GPU = 8, 32
"""Questions that go side by side, where there is room: what more of them save of a step is little."""
_SHARE = 0.8
"""Part of what is free that may be planned with: sizes are estimates, and others are there, too."""
_PROBABILITIES = {"cpu": 1 << 24, "cuda": 1 << 26}
"""Bytes of a block of probabilities where a layer is scored, at most; three of them are there at a time."""
_ROWS = 16
"""Queries of such a block, at least."""


@dataclass(frozen=True)
class Load:
    """The largest prompt of a run, and what is done with it."""

    context: int
    """Tokens of the context."""
    question: int
    """Tokens of the question behind it."""
    answer: int
    """Tokens of an answer, at most."""
    seen: bool
    """True if every question is read with the context, so that each has a prompt of its own."""
    methods: Sequence[Method]
    together: int = 1
    """Methods whose answers are decoded side by side, at most."""
    fold_every: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens of context and question."""
        return self.context + self.question


@dataclass(frozen=True)
class Room:
    """Free memory, and what questions take of it."""

    free: int | None
    """Bytes on the model's devices; None where the system does not tell."""
    once: int
    """Bytes whatever the number of questions."""
    each: int
    """Bytes of a question."""
    most: int
    """Questions where memory sets no limit."""

    @property
    def questions(self) -> int:
        """Questions that go side by side, at least one."""
        if self.free is None:
            return self.most
        return max(1, min(self.most, (int(self.free * _SHARE) - self.once) // self.each))

    def needed(self, questions: int) -> int:
        """Bytes that so many questions take side by side."""
        return self.once + questions * self.each


def room_for(model: PreTrainedModel, load: Load, workers: int = 1) -> Room:
    """Room on the devices of a model that is loaded.

    workers: processes that divide a device, each with a model of its own in the place of this one.
    """
    free = free_memory(model)
    if free is not None and workers > 1:
        weights = int(model.get_memory_footprint())
        free = (free + weights) // workers - weights
    most = MOST_ON_A_GPU if model.device.type == "cuda" else MOST
    once, each = _needed(model, load)
    return Room(free, once, each, most)


def _needed(model: PreTrainedModel, load: Load) -> tuple[int, int]:
    """Bytes whatever the number of questions, and of each: dense prompts, compressed ones, tails, and work."""
    config = model.config.get_text_config(decoder=True)
    heads, sizes = heads_of(model, config), prompt_bytes(model)
    asking, token = most_query_heads(config), sizes.token
    block = _PROBABILITIES.get(model.device.type, _PROBABILITIES["cpu"])
    work = _reading(model, load.tokens) + 3 * min(block, 4 * asking * _ROWS * load.tokens)
    asked = 0 if load.seen else load.question
    tails = load.together * max(FIRST_CAPACITY, int(GROWTH * (asked + load.answer))) * token
    beside = load.together * sizes.beside(load.tokens + load.answer)
    read = load.tokens if load.seen else load.context
    looked_at = max(queries_of(each, read, load.fold_every) for each in load.methods)
    dense = sizes.dense(read, looked_at)
    if load.seen:
        # While prompts are read, the start that they share is there besides those that were read.
        return work + dense, dense + _kept(load, load.tokens, heads, token) + beside + tails
    return work + dense + _kept(load, load.context, heads, token) + beside, beside + tails


def _kept(load: Load, tokens: int, heads: Sequence[int], token: int) -> int:
    """Bytes of a prompt as the methods leave it that keep most, all that are decoded together."""
    shares = []
    for each in load.methods:
        if each.budget.unit == "bytes":
            shares.append(min(int(each.budget.amount), tokens * token))
        else:
            shares.append(each.budget.slots(tokens, heads, each.scorer.guaranteed) * token // sum(heads))
    return sum(sorted(shares, reverse=True)[: load.together])


def _reading(model: PreTrainedModel, tokens: int) -> int:
    """Bytes of activations while a layer reads a prompt: hidden states, projections, and the feed-forward's."""
    config = model.config.get_text_config(decoder=True)
    told = fact_of(config, "intermediate_size") or 4 * config.hidden_size
    inner = max(each or 0 for each in told) if isinstance(told, list | tuple) else told
    return int(tokens * (6 * config.hidden_size + 3 * inner) * model.dtype.itemsize)
