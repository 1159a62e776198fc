"""Attention and caches beside what others do with a model: wrap it, adapt it, choose tokens, leave caches out."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoConfig, DynamicCache, StaticCache, T5Config, T5Model
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import winnow
from support.families import build, prompt
from winnow.bundled import MODEL_PATH
from winnow.cache.attention import winnow_attention
from winnow.cache.compressed import CompressedCache
from winnow.cache.fingerprint import ModelFingerprint
from winnow.errors import CacheError, ModelError
from winnow.models import load_model, open_model
from winnow.models.kinds import check_compressible

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model():
    found = build("llama")
    found.set_attn_implementation("winnow")
    return found


def test_arguments_have_the_places_of_transformers_own_functions():
    ours, theirs = (list(inspect.signature(each).parameters) for each in (winnow_attention, sdpa_attention_forward))
    assert ours[:7] == theirs[:7]


@pytest.mark.parametrize("name", ["indices", "block_indices", "sinks"])
@pytest.mark.parametrize("kept", [True, False])
def test_tokens_that_a_model_chooses_are_refused_with_any_cache(model, name, kept):
    past = CompressedCache(model, "snapkv @ 50%") if kept else DynamicCache()
    with pytest.raises(CacheError, match=f"uses '{name}' to choose .*set_attn_implementation"):
        model(prompt(length=20), past_key_values=past, **{name: torch.zeros(1)})


@pytest.mark.parametrize(
    "facts", [{"model_type": "llama", "index_topk_blocks": 2}, {"model_type": "inkling_text"}, {"model_type": "blt"}]
)
def test_what_no_cache_of_ours_serves_is_refused_before_weights_are_read(facts):
    config = SimpleNamespace(**facts, is_encoder_decoder=False)
    config.get_text_config = lambda decoder: config
    with pytest.raises(ModelError):
        check_compressible(config, "a model")


def test_attention_to_states_of_images_is_refused():
    text = AutoConfig.for_model("mllama").get_text_config(decoder=True)
    with pytest.raises(ModelError, match="states of images"):
        check_compressible(text, "a model")


def test_states_beside_full_attention_are_no_linear_layers():
    model = build("falcon_h1")
    model.set_attn_implementation("winnow")
    assert not any(CompressedCache(model, "snapkv @ 50%").is_linear)


def test_a_model_that_leaves_the_cache_out_is_told(model):
    model.gradient_checkpointing_enable()
    model.train()
    with pytest.raises(CacheError, match=r"leaves 20 of 20 tokens out.*model\.eval\(\)"):
        winnow.compress(model, prompt(length=20), "snapkv @ 50%")
    past = CompressedCache(model, "snapkv @ 50%")
    with pytest.raises(CacheError, match=r"leaves 20 of 20 tokens out.*model\.eval\(\)"):
        model.generate(prompt(length=20), past_key_values=past, max_new_tokens=3)
    model.gradient_checkpointing_disable()
    model.generate(prompt(length=20), past_key_values=past, max_new_tokens=3, min_new_tokens=3)
    assert past.get_seq_length() == 22


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_a_prompt_in_a_static_cache_sees_no_empty_slots(family):
    model, logits = build(family), []
    for name in ("eager", "winnow"):
        model.set_attn_implementation(name)
        past = StaticCache(config=model.config, max_cache_len=64)
        with torch.no_grad():
            logits.append(model(prompt(length=40), past_key_values=past).logits)
            logits.append(model(prompt(length=3), past_key_values=past).logits)
    torch.testing.assert_close(logits[2], logits[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[3], logits[1], atol=1e-5, rtol=1e-5)


def test_a_bias_of_positions_counts():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 97}
    model = T5Model(T5Config(decoder_start_token_id=0, **sizes)).eval()
    for name, weight in model.named_parameters():
        if "relative_attention_bias" in name:
            nn.init.normal_(weight, std=3)
    ids, states = prompt(length=30), []
    for name in ("eager", "winnow"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            states.append(model(input_ids=ids, decoder_input_ids=ids[:, :20]).last_hidden_state)
    torch.testing.assert_close(states[1], states[0], atol=1e-5, rtol=1e-5)


def test_an_answer_without_a_cache_is_none():
    source = open_model(MODEL_PATH)
    model = load_model(source)
    model.gradient_checkpointing_enable()
    model.train()
    with pytest.raises(CacheError, match=r"out of the cache.*model\.eval\(\)"):
        winnow.generate(model, source.tokenizer, "A text.", "Where is it?", method="snapkv @ 50%", max_new_tokens=3)


class Adapted(nn.Module):
    """A linear layer as PEFT wraps it, as far as contexts look."""

    disable_adapters = False

    def __init__(self, layer):
        super().__init__()
        self.base_layer, self.active_adapters = layer, ["one"]

    def forward(self, inputs):
        return self.base_layer(inputs)


def test_contexts_know_the_adapters_that_are_active(model, tmp_path):
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
    winnow.compress(model, prompt(length=20), "snapkv @ 50%").save(tmp_path / "one.winnow")
    winnow.load_context(tmp_path / "one.winnow", model)
    for layer in model.model.layers:
        layer.self_attn.q_proj.active_adapters = ["two"]
    with pytest.raises(CacheError, match=r"adapters \['one'\], not \['two'\]"):
        winnow.load_context(tmp_path / "one.winnow", model)


def test_adapters_that_are_switched_off_are_not_active(model):
    attention = model.model.layers[0].self_attn
    attention.q_proj = Adapted(attention.q_proj)
    assert ModelFingerprint.of(model).architecture["adapters"] == ["one"]
    attention.q_proj.disable_adapters = True
    assert ModelFingerprint.of(model).architecture["adapters"] == []


def test_a_compiled_model_reads_the_contexts_of_what_it_compiles(model):
    compiled = torch.compile(model, backend="eager")
    assert ModelFingerprint.of(compiled) == ModelFingerprint.of(model)


@torch.no_grad()
def test_a_prompt_that_comes_twice_is_refused(model):
    past = CompressedCache(model, "snapkv @ 50%", prompt_length=40)
    model(prompt(length=20), past_key_values=past)
    with pytest.raises(CacheError, match="begin at position 0"):
        model(prompt(length=20), past_key_values=past, position_ids=torch.arange(20)[None])
