"""Memory of a cache whose forward pass failed: free when its user lets go of it, without a collector of cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest
import torch

from support.families import prompt
from support.small_caches import N, made
from winnow import CompressedCache
from winnow.cache import attention
from winnow.cache.layer import CompressedLayer

FAMILIES = ["llama", "deepseek_v3"]

pytestmark = pytest.mark.usefixtures("one_thread")


class Failure(Exception):
    """An error in the middle of a forward pass."""


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def failing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The third call of a function fails: that of the last of three layers."""
    real, calls = getattr(owner, name), []

    def function(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) == 3:
            raise Failure
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, function)


def held_after(model, past: CompressedCache, tokens: int) -> list[ref[Any]]:
    """Layers and tensors of a cache that failed to take some tokens."""
    with torch.no_grad():
        try:
            model(prompt(length=tokens), past_key_values=past)
        except Failure:
            layers = past.compressed_layers()
            return [ref(each) for layer in layers for each in (layer, *layer.tensors())]
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"prompt_length": 2 * N}, {"defer": True}], ids=["whole", "part", "deferred"])
def test_a_prompt_that_failed(monkeypatch, family: str, options: dict[str, Any]) -> None:
    model = made(family)
    failing(monkeypatch, attention, "dense_attention")
    held = held_after(model, CompressedCache(model, "snapkv @ 12", **options), N)
    assert [each() for each in held] == [None] * len(held)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"fold_turns": 2}], ids=["", "turns are folded"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_a_step_that_failed(monkeypatch, family: str, options: dict[str, Any], tokens: int) -> None:
    model = made(family)
    past = CompressedCache(model, "snapkv(window=2) @ 12", **options)
    with torch.no_grad():
        for length in (N, 1):
            model(prompt(length=length), past_key_values=past)
    failing(monkeypatch, attention, "_over_tail")
    if tokens == 1:  # where the usual token has a way of its own
        failing(monkeypatch, CompressedLayer, "attend_token")
    held = held_after(model, past, tokens)
    del past
    assert [each() for each in held] == [None] * len(held)


def test_a_pass_that_failed_before_its_attention(monkeypatch) -> None:
    """As where there is no memory for the keys that heads make of latents."""
    model = made("deepseek_v3")
    failing(monkeypatch, type(model.model.layers[0].self_attn), "expand_kv")
    held = held_after(model, CompressedCache(model, "snapkv @ 12", defer=True), N)
    assert [each() for each in held] == [None] * len(held)
