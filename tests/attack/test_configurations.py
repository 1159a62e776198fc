"""Random configurations: family, method, store, budget, padding, batch, chunks, folding and dtype.

Without folding a cache must compute dense attention over what its slots recover; with or without, every step must be
the same by the native kernels and by the torch reference.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import winnow
from support.attack import seeds
from support.backends import CLOSE, EVICTIONS, REFERENCE, STORES, folds, served_by
from support.families import FAMILIES, VOCABULARY, build
from support.instruction_sets import needs_native
from support.packed_slots import assert_same_tensors
from support.ready import ready
from support.recovered_oracle import recovered_logits
from support.weight_rounding import ROUNDING
from winnow import CompressedCache, WinnowError
from winnow.cache.prefix import Prefix

pytestmark = pytest.mark.usefixtures("one_thread")

LINEAR = ("qwen3_next", "lfm2", "falcon_h1")
"""Recurrent layers are computed by another formula when stepping, and see padding between tokens."""
SMOOTH = [family for family, options in FAMILIES.items() if "num_experts" not in options and family not in LINEAR]
"""Families without routers, whose choices rounding could change."""


@cache
def model_of(family: str, dtype: torch.dtype) -> Any:
    made = build(family).to(dtype)
    made.set_attn_implementation("winnow")
    return made


@cache
def widened(family: str, dtype: torch.dtype) -> Any:
    """The weights of a model in fp32, rounded as they are."""
    return deepcopy(model_of(family, dtype)).float()


@cache
def shape_of(family: str) -> tuple[int, int]:
    """Compressed layers and their KV heads, which configurations do not always tell."""
    past = CompressedCache(model_of(family, torch.float32), winnow.method("full"))
    with torch.no_grad():
        model_of(family, torch.float32)(torch.tensor([[2]]), past_key_values=past)
    layers = past.compressed_layers()
    return len(layers), layers[0].tail.keys.shape[1]


class Configuration(NamedTuple):
    """A model, the arguments of its cache, and the tokens that it is fed."""

    family: str
    model: Any
    method: winnow.Method
    every: int | None
    ids: Tensor
    """[R, N]"""
    mask: Tensor
    """[R, N]"""
    chunks: tuple[int, ...]
    """Tokens that arrive together."""
    prompt: int
    """Tokens of the first chunks, which are the prompt."""

    def cache(self) -> CompressedCache:
        # A later chunk of as many tokens as the prompt looks like the prompt's next part.
        told = self.chunks[0] < self.prompt or self.prompt in self.chunks[1:]
        return CompressedCache(
            self.model, self.method, prompt_length=self.prompt if told else None, fold_every=self.every
        )

    @property
    def positions(self) -> Tensor:
        """[R, N]"""
        return (self.mask.cumsum(1) - 1).clamp(min=0)

    def step(self, past: CompressedCache, start: int, size: int) -> Tensor:
        """Logits [R, size, V] of the tokens of one chunk."""
        part = slice(start, start + size)
        padded = {} if bool(self.mask.all()) else {"attention_mask": self.mask[:, : part.stop]}
        with torch.no_grad():
            logits: Tensor = self.model(
                self.ids[:, part], position_ids=self.positions[:, part], past_key_values=past, use_cache=True, **padded
            ).logits
        return logits


def configuration(rng: Random, fold: bool) -> Configuration:
    """Any that can be made; methods that cannot serve a model, or fold, say so and are drawn again."""
    while True:
        dtype = rng.choice([torch.float32] * 4 + [torch.bfloat16, torch.float16])
        family = rng.choice(list(FAMILIES) if dtype is torch.float32 else SMOOTH)
        try:
            drawn = _drawn(rng, family, model_of(family, dtype), fold)
            drawn.cache()
        except WinnowError:
            continue
        return drawn


def _drawn(rng: Random, family: str, model: Any, fold: bool) -> Configuration:
    layers, heads = shape_of(family)
    budget = rng.choice([rng.randint(12, 40), f"{rng.randint(30, 90)}%"])
    method = ready("+".join(filter(None, (_eviction(rng), _store(rng)))), budget, (layers, heads))
    every = rng.randint(1, 6) if fold and folds(method, 6) else None
    length = rng.randint(1, 60)
    size = rng.choice([length, length, rng.randint(1, length)])
    prompt = [min(size, length - start) for start in range(0, length, size)]
    later = [rng.choice([1, 1, 1, 3]) for _ in range(rng.randint(3, 8))]
    rows, total = rng.choice([1, 1, 2, 3]), length + sum(later)
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    ids = torch.randint(2, VOCABULARY, (rows, total), generator=generator)
    return Configuration(
        family, model, method, every, ids, _mask(rng, family, rows, length, total), (*prompt, *later), length
    )


def _eviction(rng: Random) -> str:
    return rng.choice(EVICTIONS)


def _store(rng: Random) -> str:
    return rng.choice(["", "", *STORES])


def _mask(rng: Random, family: str, rows: int, length: int, total: int) -> Tensor:
    """[R, N] with padding on one side of the prompt in all rows but one, or nowhere."""
    mask = torch.ones(rows, total, dtype=torch.int64)
    side = rng.choice(["none", "left"] if family in LINEAR else ["none", "left", "right"])
    if length > 1 and side != "none":
        for row in range(rows - 1):
            gone = rng.randint(0, length - 1)
            mask[row, slice(0, gone) if side == "left" else slice(length - gone, length)] = 0
    return mask


def error(found: Tensor, expected: Tensor) -> float:
    """The largest difference of logits [T, V], as a share of the largest logit of the same token."""
    return float(((found - expected).abs().amax(-1) / expected.abs().amax(-1)).float().max())


@pytest.mark.parametrize("seed", seeds(24, 1200))
def test_dense_attention_over_what_is_recovered(seed: int) -> None:
    chosen = configuration(Random(seed), fold=False)
    past, parts, start = chosen.cache(), [], 0
    for size in chosen.chunks:
        parts.append(chosen.step(past, start, size))
        start += size
    there = chosen.mask.bool()
    there[:, : chosen.prompt - 1] &= chosen.mask[:, 1 : chosen.prompt].bool()  # of the prompt: not before padding
    asked = (past, chosen.ids, chosen.mask, chosen.positions, chosen.prompt)
    expected = recovered_logits(widened(chosen.family, chosen.model.dtype), *asked)[there]
    tolerance = 1e-3 if chosen.family in LINEAR else max(CLOSE[chosen.model.dtype], 1e-4)
    if chosen.model.dtype is not torch.float32:
        # Dense attention has the rounding of 16 bits, too.
        tolerance = max(tolerance, 2 * error(recovered_logits(chosen.model, *asked)[there], expected))
    assert error(torch.cat(parts, dim=1)[there], expected) < tolerance


def assert_same_prefixes(found: Prefix, expected: Prefix, dtype: torch.dtype) -> None:
    """The same slots to the bit; what they scored so far, sums of attention, may differ by rounding."""
    assert_same_tensors(replace(found, carried=None), replace(expected, carried=None))
    assert (found.carried is None) == (expected.carried is None)
    if found.carried is not None:
        tolerance = ROUNDING if dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(found.carried, expected.carried, rtol=tolerance, atol=tolerance)


@needs_native
@pytest.mark.parametrize("seed", seeds(12, 600))
def test_native_kernels_are_the_reference_step_by_step(seed: int) -> None:
    chosen = configuration(Random(10_000 + seed), fold=True)
    past, start = chosen.cache(), 0
    for size in chosen.chunks:
        fork = deepcopy(past)
        found = chosen.step(past, start, size)
        with served_by(REFERENCE):
            expected = chosen.step(fork, start, size)
        there = chosen.mask[:, start : start + size].bool()
        start += size
        if bool(there.any()):
            assert error(found[there], expected[there]) < max(CLOSE[chosen.model.dtype], 1e-4)
        for one, other in zip(past.compressed_layers(), fork.compressed_layers(), strict=True):
            if one is past.layers[0]:  # later layers see what earlier ones computed, with their rounding
                for mine, theirs in zip(one.prefixes, other.prefixes, strict=True):
                    assert (mine is None) == (theirs is None)
                    if mine is not None:
                        assert_same_prefixes(mine, theirs, chosen.model.dtype)
