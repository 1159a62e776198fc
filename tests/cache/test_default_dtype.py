"""Another default dtype of torch, as programs set that load models in 16 bits: what Winnow makes stays in its own.

And models in double precision, for exact checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import winnow
from support.families import build, prompt
from support.ready import METHODS, ready
from support.turns import each_value

LENGTH = 160
PACKED = ["spark", "spark(0.5)+bits(8)", "think(0.5)", "bits(4)", "bits(8)", "mixedbits(5)", "kivi(4)"]
NAMES = [*METHODS, *(f"snapkv+{each}" for each in ("cake", "zigzag", "raba", "critical", *PACKED))]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def answered(model, name, length=LENGTH, **parameters):
    """Logits of three tokens after a compressed prompt, and the slots that are kept."""
    cache = winnow.CompressedCache(model, ready(name, 48, shape=(3, 2), **parameters))
    ids = prompt(length=length)
    logits = [model(ids, past_key_values=cache).logits[:, -1]]
    for token in (5, 6):
        logits.append(model(torch.tensor([[token]]), past_key_values=cache).logits[:, -1])
    return torch.stack(logits), [head for layer in range(len(cache.layers)) for head in cache.kept(layer)]


@pytest.mark.parametrize(("name", "dtype"), each_value(NAMES, [torch.bfloat16, torch.float64]))
def test_methods_do_as_under_the_usual_one(name, dtype):
    model = build("llama")
    model.set_attn_implementation("winnow")
    logits, kept = answered(model, name)
    with default_dtype(dtype):
        found, found_kept = answered(model, name)
    assert len(kept) == len(found_kept)
    assert all(torch.equal(a, b) for a, b in zip(kept, found_kept, strict=True))
    assert torch.equal(found, logits)


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv", "adakv", "ada-pyramidkv", "headkv-r", "cokv", "aperturekv"])
def test_slots_are_rounded_as_under_the_usual_one(name):
    model = build("llama")
    model.set_attn_implementation("winnow")
    _, kept = answered(model, name, length=480, rounding="paper")
    with default_dtype(torch.bfloat16):
        _, found = answered(model, name, length=480, rounding="paper")
    assert [head.tolist() for head in found] == [head.tolist() for head in kept]


@pytest.mark.parametrize("name", NAMES)
def test_double_precision(name):
    model = build("llama").double()
    model.set_attn_implementation("winnow")
    logits, _ = answered(model, name)
    assert logits.dtype == torch.float64
    assert logits.isfinite().all()
