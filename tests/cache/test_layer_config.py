"""Models whose layers have heads of their own size and number, as Gemma 4 has."""

from __future__ import annotations

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForImageTextToText, DynamicCache

import winnow
from support.families import COMMON, HYBRID_TYPES, TOWER, build, prompt, sharpen
from winnow.cache.fingerprint import ModelFingerprint
from winnow.cache.guards import text_config
from winnow.cache.hybrid import heads_of
from winnow.cache.latent import slot_dims
from winnow.cache.layer_config import most_query_heads
from winnow.evaluate.checking import check_shapes
from winnow.runs.room import Load, room_for

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


@pytest.mark.skipif("step3p7" not in CONFIG_MAPPING, reason="this transformers has no Step 3.7")
def test_query_heads_of_full_layers_are_counted_where_sliding_ones_have_more(tmp_path):
    text = {
        "num_hidden_layers": len(HYBRID_TYPES),
        "layer_types": HYBRID_TYPES,
        "sliding_window": 8,
        "num_sliding_attention_heads": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "share_expert_dim": 32,
    }
    config = AutoConfig.for_model("step3p7", text_config={**COMMON, **text}, vision_config=TOWER, image_token_id=96)
    model = sharpen(AutoModelForImageTextToText.from_config(config))
    model.set_attn_implementation("winnow")
    assert most_query_heads(text_config(model)) == 4
    method = winnow.method("adakv @ 1MB")
    check_shapes(model, [method], lengths=[LENGTH], fold_every=None)
    assert room_for(model, Load(LENGTH, question=3, answer=4, seen=False, methods=[method])).each > 0
    context = winnow.compress(model, prompt(length=LENGTH), "adakv @ 9")
    loaded = winnow.load_context(context.save(tmp_path / "c"), model)
    assert loaded.stats().slots == context.stats().slots
