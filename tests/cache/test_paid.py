"""Payments of a prompt's queries, summed up while the model attends, against attention in float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

import winnow
from support.definitions import attention
from support.families import prompt
from support.small_caches import N, made
from winnow.cache.prefix import Prefix
from winnow.errors import CacheError
from winnow.kernels import prefill
from winnow.view import LayerView

FAMILIES = [*("llama", "qwen2", "gemma2", "gpt_oss", "gemma3_text"), "deepseek_v3"]
"""Plain; grouped; soft-capping and sliding layers; sinks; latents."""


@dataclass
class Watching:
    """Compares what views were paid with what their queries say."""

    queries: int = N
    views: int = 0
    rows: list[int] = field(default_factory=list)

    def see(self, view: LayerView, prefix: Prefix) -> None:
        heads, length, _ = view.keys.shape
        expected = attention(view).reshape(heads, -1, length, length).sum(axis=2).mean(axis=1)
        assert view.paid is not None
        torch.testing.assert_close(view.paid.double(), torch.from_numpy(expected), atol=2e-5, rtol=1e-5)
        self.views += 1
        self.rows.append(length)


@pytest.fixture(params=["compiled", "reference"])
def kernels(request, monkeypatch):
    if request.param == "reference":
        monkeypatch.setattr(prefill, "supports", lambda queries, keys: False)


def filled(model, cache, ids, chunk, mask=None):
    with torch.no_grad():
        for start in range(0, ids.shape[1], chunk):
            stop = min(start + chunk, ids.shape[1])
            part = None if mask is None else mask[:, :stop]
            out = model(ids[:, start:stop], attention_mask=part, past_key_values=cache).logits
    return out[:, -1]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [N, 13])
def test_payments(family, chunk, kernels):
    model, watching = made(family), Watching()
    cache = winnow.CompressedCache(model, "h2o @ 12", prompt_length=N, observer=watching)
    logits = filled(model, cache, prompt(length=N), chunk)
    assert watching.views == len(cache.compressed_layers())
    stock = filled(model, winnow.CompressedCache(model, "full", prompt_length=N), prompt(length=N), N)
    torch.testing.assert_close(logits, stock, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("chunk", [N, 13])
@pytest.mark.parametrize("side", ["left", "right"])
def test_payments_of_padded_rows(model, chunk, side, kernels):
    ids, mask = prompt(rows=3, length=N), torch.ones(3, N, dtype=torch.int64)
    mask[1, slice(0, 15) if side == "left" else slice(N - 15, N)] = 0
    watching = Watching()
    cache = winnow.CompressedCache(model, "h2o @ 12", prompt_length=N, observer=watching)
    filled(model, cache, ids, chunk, mask)
    assert set(watching.rows) == {N, N - 15}


@pytest.mark.parametrize(
    "name", ["h2o", "h2o+critical", "h2o+ada", "h2o+global", "h2o+spark(0.5)", "h2o(normalize=true)"]
)
def test_a_prompt_that_waits_keeps_the_same(model, name):
    ids, method = prompt(length=N), winnow.method(name, budget=12)
    direct, waiting = winnow.CompressedCache(model, method), winnow.CompressedCache(model, "full", defer=True)
    filled(model, direct, ids, N)
    filled(model, waiting, ids, N)
    waited = waiting.compressed_by(method)
    for layer in range(len(direct.compressed_layers())):
        assert [k.tolist() for k in direct.kept(layer)] == [k.tolist() for k in waited.kept(layer)]


def test_a_prompt_in_chunks_is_held_once(model):
    cache = winnow.CompressedCache(model, "adakv @ 12", prompt_length=N)
    places = set()
    for chunk in prompt(length=N)[:, :30].split(7, dim=1):
        filled(model, cache, chunk, 7)
        places.add(cache.compressed_layers()[0].tail.keys.data_ptr())
        assert {layer.tail.keys.shape[2] for layer in cache.compressed_layers()} == {N}
    assert len(places) == 1


def test_queries_are_let_go_chunk_by_chunk(model):
    cache = winnow.CompressedCache(model, "h2o @ 12", prompt_length=N)
    filled(model, cache, prompt(length=N)[:, :30], 10)
    for layer in cache.compressed_layers():
        heads = layer.tail.keys.shape[1]
        assert layer.arriving.nbytes() == 30 + heads * 30 * 4  # validity, and what was paid


def test_a_fold_adds_to_what_the_prompt_paid(model):
    cache = winnow.CompressedCache(model, "h2o @ 12", fold_every=8)
    filled(model, cache, prompt(length=N), N)
    carried = [layer.prefixes[0].carried for layer in cache.compressed_layers()]
    filled(model, cache, prompt(length=20, seed=2), 1)
    for layer, before in zip(cache.compressed_layers(), carried, strict=True):
        assert layer.prefixes[0].length == N + 16
        assert layer.prefixes[0].carried.sum() > before.sum()


def test_what_was_paid_cannot_be_taken_back(model):
    cache = winnow.CompressedCache(model, "h2o @ 12", prompt_length=N)
    filled(model, cache, prompt(length=N)[:, :30], 30)
    with pytest.raises(CacheError, match="activate_past_recording"):
        cache.crop(-3)
    assert cache.get_seq_length() == 30
    cache.crop(0)


def test_tokens_may_be_taken_back_where_that_was_said_before(model):
    ids, cropped = prompt(length=N), winnow.CompressedCache(model, "h2o @ 12")
    cropped.activate_past_recording()
    filled(model, cropped, torch.cat([ids, prompt(length=3, seed=9)], dim=1), N + 3)
    cropped.crop(-3)
    direct = winnow.CompressedCache(model, "h2o @ 12")
    filled(model, direct, ids, N)
    for layer in range(len(direct.compressed_layers())):
        assert [k.tolist() for k in direct.kept(layer)] == [k.tolist() for k in cropped.kept(layer)]


def test_gradients_flow_through_a_prompt():
    model = made()
    cache = winnow.CompressedCache(model, "h2o @ 12")
    model(prompt(length=N), past_key_values=cache).logits.sum().backward()
    assert all(layer.self_attn.q_proj.weight.grad.abs().sum() > 0 for layer in model.model.layers)
