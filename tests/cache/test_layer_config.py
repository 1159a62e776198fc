"""Models whose layers have heads of their own size and number, as Gemma 4 has."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

import winnow
from support.families import HYBRID_TYPES, build, prompt
from winnow.cache.fingerprint import ModelFingerprint
from winnow.cache.hybrid import heads_of
from winnow.cache.latent import slot_dims
from winnow.evaluate.checking import check_shapes

pytest.importorskip("transformers.integrations.heterogeneity")
LENGTH = 40


@pytest.fixture(scope="module", params=[{"head_dim": 32}, {"head_dim": 32, "num_key_value_heads": 1}], ids=str)
def model(request):
    layers = {index: request.param for index, kind in enumerate(HYBRID_TYPES) if kind == "full_attention"}
    return build(
        "gemma4_text",
        num_hidden_layers=len(HYBRID_TYPES),
        layer_types=HYBRID_TYPES,
        sliding_window=8,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=97,
        num_kv_shared_layers=0,
        attention_k_eq_v="num_key_value_heads" in request.param,
        per_layer_config=layers,
    )


@torch.no_grad()
def logits(model, cache):
    found = [model(prompt(length=LENGTH), past_key_values=cache).logits[0, -1]]
    for token in (7, 8):
        found.append(model(torch.tensor([[token]]), past_key_values=cache).logits[0, -1])
    return torch.stack(found)


def test_they_are_those_of_full_layers(model):
    heads = getattr(model.config.per_layer_config[1], "num_key_value_heads", 2)
    assert heads_of(model, model.config) == [heads, heads]
    assert slot_dims(model.config) == (32, 32)
    assert ModelFingerprint.of(model).architecture["head_dim"] == [16, 32, 16, 32]
    check_shapes(model, [winnow.method("adakv @ 1MB")], lengths=[LENGTH], fold_every=None)


def test_answers_are_those_of_the_stock_cache(model, tmp_path):
    model.set_attn_implementation("sdpa")
    expected = logits(model, DynamicCache(config=model.config))
    model.set_attn_implementation("winnow")
    torch.testing.assert_close(
        logits(model, winnow.CompressedCache(model, f"adakv @ {LENGTH}")), expected, atol=1e-5, rtol=1e-5
    )
    context = winnow.compress(model, prompt(length=LENGTH), "adakv @ 9")
    loaded = winnow.load_context(context.save(tmp_path / "c"), model)
    assert loaded.stats().slots == context.stats().slots
