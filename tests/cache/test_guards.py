"""Guards: whatever cannot work says so, with a remedy."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM

import winnow
from support.families import build, prompt
from winnow import CacheError, ModelError

METHOD = winnow.method("snapkv", budget=9, window=3)


@pytest.fixture
def model():
    made = build("llama")
    made.set_attn_implementation("winnow")
    return made


def filled(model, length: int = 30, **kwargs) -> winnow.CompressedCache:
    cache = winnow.CompressedCache(model, METHOD, **kwargs)
    with torch.no_grad():
        model(prompt(length=length), past_key_values=cache)
    return cache


def test_another_attention_implementation(model):
    model.set_attn_implementation("sdpa")
    with pytest.raises(CacheError, match=r'set_attn_implementation\("winnow"\)'):
        winnow.CompressedCache(model, METHOD)


def test_switched_midway(model):
    cache = filled(model)
    model.set_attn_implementation("sdpa")
    with pytest.raises(CacheError, match=r'set_attn_implementation\("winnow"\)'):
        model(prompt(length=1), past_key_values=cache)


def test_switched_before_the_prompt(model):
    cache = winnow.CompressedCache(model, METHOD)
    model.set_attn_implementation("eager")
    with pytest.raises(CacheError, match=r'set_attn_implementation\("winnow"\)'):
        model(prompt(length=5), past_key_values=cache)


def test_a_handle_that_never_reached_the_attention_function(model):
    cache = winnow.CompressedCache(model, METHOD)
    layer = cache.layers[0]
    keys = torch.randn(1, 2, 5, 16)
    layer.update(keys, keys)
    with pytest.raises(CacheError, match="never reached"):
        layer.update(keys, keys)
    with pytest.raises(CacheError, match="never reached"):
        cache.stats()


def test_attention_that_bypasses_the_interface(model, monkeypatch):
    from winnow.cache import attention

    monkeypatch.setattr(attention, "handle_of", lambda key: None)
    cache = winnow.CompressedCache(model, METHOD)
    with torch.no_grad(), pytest.raises(CacheError, match="never reached"):
        model(prompt(length=5), past_key_values=cache)
        model(prompt(length=1), past_key_values=cache)


@pytest.mark.parametrize("wrap", [nn.DataParallel, nn.Sequential, lambda model: METHOD, lambda model: None, str])
def test_what_is_no_model(model, wrap):
    given = wrap(model)
    with pytest.raises(ModelError, match=rf"is a {type(given).__name__}, .*CompressedCache\(model, method\)"):
        winnow.CompressedCache(given, model)
    with pytest.raises(
        ModelError, match=rf"is a {type(given).__name__}, .*winnow.compress\(model, input_ids, method\)"
    ):
        winnow.compress(given, prompt(), METHOD)


def test_encoder_decoder():
    config = AutoConfig.for_model(
        "t5", vocab_size=97, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    with pytest.raises(ModelError, match="decoder-only"):
        winnow.CompressedCache(AutoModelForSeq2SeqLM.from_config(config), METHOD)


def test_latents_that_transformers_expands_before_it_caches_them(monkeypatch):
    model = build("deepseek_v3")
    model.set_attn_implementation("winnow")
    monkeypatch.delattr(type(model.model.layers[0].self_attn), "expand_kv", raising=False)
    with pytest.raises(ModelError, match="no trust_remote_code"):
        winnow.CompressedCache(model, METHOD)


def test_no_full_attention_layer():
    model = build("mistral", sliding_window=8)
    model.set_attn_implementation("winnow")
    with pytest.raises(CacheError, match="no full-attention layer"):
        winnow.CompressedCache(model, METHOD)


def test_output_attentions(model):
    cache = winnow.CompressedCache(model, METHOD)
    with pytest.raises((CacheError, ValueError), match=r"output_attentions|eager"):
        model.generate(
            prompt(),
            past_key_values=cache,
            max_new_tokens=2,
            output_attentions=True,
            return_dict_in_generate=True,
        )


def test_offloading(model):
    cache = filled(model)
    with pytest.raises(CacheError, match="offload"):
        cache.layers[0].offload()
    with pytest.raises(CacheError, match="offload"):
        cache.layers[0].prefetch()


def test_cropping_into_the_prefix(model):
    cache = filled(model)
    with torch.no_grad():
        model(prompt(length=4, seed=2), past_key_values=cache)
    with pytest.raises(CacheError, match="only the last 4 can"):
        cache.crop(-5)
    assert cache.get_seq_length() == 34
    cache.crop(-4)
    assert cache.get_seq_length() == 30
    cache.crop(0)
    with pytest.raises(CacheError, match="only the last 0 can"):
        cache.crop(-1)


def test_another_number_of_rows(model):
    cache = filled(model)
    with pytest.raises(CacheError, match="1 rows, but the model now sends 2"):
        model(prompt(rows=2, length=1), past_key_values=cache)


def test_another_dtype(model):
    cache = filled(model)
    with pytest.raises(CacheError, match=r"float32.*bfloat16"):
        model.to(torch.bfloat16)(prompt(length=1), past_key_values=cache)


def test_a_mask_that_is_too_short(model):
    cache = winnow.CompressedCache(model, METHOD, prompt_length=30)
    with torch.no_grad():
        model(prompt(length=20), past_key_values=cache)
        with pytest.raises(CacheError, match="covers 10 tokens"):
            model(prompt(length=10), attention_mask=torch.zeros(1, 10), past_key_values=cache)


def test_a_four_dimensional_mask_after_the_prompt(model):
    cache = filled(model)
    with torch.no_grad(), pytest.raises(CacheError, match="4-D"):
        model(prompt(length=2), attention_mask=torch.ones(1, 1, 2, 32, dtype=torch.bool), past_key_values=cache)


def test_kept_of_the_wrong_place(model):
    cache = filled(model)
    with pytest.raises(CacheError, match=r"\[0, 1, 2\]"):
        cache.kept(3)
    with pytest.raises(CacheError, match="no row 1"):
        cache.kept(0, row=1)
    with pytest.raises(CacheError, match="nothing was compressed"):
        winnow.CompressedCache(model, METHOD).kept(0)


def test_bad_arguments(model):
    with pytest.raises(CacheError, match="prompt_length is 0"):
        winnow.CompressedCache(model, METHOD, prompt_length=0)
    with pytest.raises(CacheError, match="has 1 layers"):
        winnow.CompressedCache(model, METHOD, heads_per_layer=[2])
    with pytest.raises(CacheError, match="shape"):
        winnow.compress(model, torch.zeros(1, 0, dtype=torch.int64), METHOD)
    with pytest.raises(CacheError, match="chunk_size is 0"):
        winnow.compress(model, prompt(), METHOD, chunk_size=0)


def test_wrong_heads_are_noticed(model):
    cache = winnow.CompressedCache(model, METHOD, heads_per_layer=[2, 4, 2])
    with pytest.raises(CacheError, match="has 2 KV heads where 4"):
        model(prompt(), past_key_values=cache)


def test_a_batch_with_its_padding_on_the_right_is_still_exact(model):
    ids, mask = prompt(rows=2, length=20), torch.ones(2, 20, dtype=torch.int64)
    mask[0, 12:] = 0
    cache = winnow.CompressedCache(model, METHOD)
    alone = winnow.CompressedCache(model, METHOD)
    with torch.no_grad():
        model(ids, attention_mask=mask, past_key_values=cache)
        model(ids[:1, :12], past_key_values=alone)
    assert [k.tolist() for k in cache.kept(1, row=0)] == [k.tolist() for k in alone.kept(1)]


def test_autocast_that_leaves_keys_and_values_apart_is_told(model):
    with (
        torch.no_grad(),
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(CacheError, match=r"keys are torch.float32 and values torch.bfloat16.*without autocast"),
    ):
        model(prompt(), past_key_values=winnow.CompressedCache(model, "full"))


def test_a_model_without_our_cache_runs_under_autocast():
    model = build("gemma2")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model(prompt(), use_cache=False).logits
        model.set_attn_implementation("winnow")
        found = model(prompt(), use_cache=False).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)


def test_a_deferred_prompt_that_lost_its_queries_is_told(model):
    cache = winnow.CompressedCache(model, METHOD, defer=True, waiting_queries=4)
    with torch.no_grad():
        model(prompt(length=30), past_key_values=cache)
    cache.crop(-1)
    cache.compressed_by("snapkv(window=3) @ 9")
    cache.crop(-1)
    with pytest.raises(CacheError, match="looks at the last 3 queries of the prompt, but the cache kept only 2"):
        cache.compressed_by("snapkv(window=3) @ 9")


@pytest.mark.parametrize("rows", [[1, 0], [1], [0, 0, 1]])
def test_rows_take_their_linear_states_along(rows):
    model = build("falcon_h1")
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, METHOD)
    with torch.no_grad():
        model(prompt(2, 30), past_key_values=cache)
        before = [{name: state.clone() for name, state in layer.conv_states.items()} for layer in cache.layers]
        cache.batch_select_indices(torch.tensor(rows))
        for layer, states in zip(cache.layers, before, strict=True):
            assert all(torch.equal(layer.conv_states[name], state[rows]) for name, state in states.items())
        cache.batch_repeat_interleave(2)
        model(prompt(2 * len(rows), 1), past_key_values=cache)
