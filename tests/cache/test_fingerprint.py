"""Fingerprints of models and tokenizers: another one is refused, a copy is not."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

import winnow
from support.contexts import refused
from support.families import build
from support.small_caches import compress, made
from winnow.bundled import MODEL_PATH
from winnow.cache.fingerprint import ModelFingerprint, hash_tokenizer

MODELS = {
    "other layers": ({"num_hidden_layers": 2}, "num_hidden_layers 3, not 2"),
    "other heads": ({"num_key_value_heads": 4}, "num_key_value_heads 2, not 4"),
    "other positions": ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rope_param"),
    "other weights": ({"seed": 1}, "same shape but other weights"),
}


@pytest.mark.parametrize("case", MODELS)
def test_another_model_is_refused(saved, case):
    overrides, expected = MODELS[case]
    refused(saved, made(**overrides), expected)


def test_another_family_dtype_or_a_fine_tune_is_refused(saved):
    refused(saved, made("mistral"), "model_type 'llama', not 'mistral'")
    refused(saved, made().to(torch.bfloat16), "load it with dtype=torch.float32")
    tuned = made()
    with torch.no_grad():
        tuned.model.layers[1].mlp.up_proj.weight.add_(1e-6)
    refused(saved, tuned, "other weights")
    plain = build("llama")
    plain.set_attn_implementation("sdpa")
    with pytest.raises(winnow.CacheError, match="attention implementation"):
        winnow.load_context(saved, plain)


def test_a_fine_tune_of_the_end_of_a_matrix_is_refused(saved):
    tuned = made()
    with torch.no_grad():
        weight = tuned.model.layers[1].mlp.up_proj.weight
        weight[len(weight) // 2 :].add_(1e-3)
    refused(saved, tuned, "other weights")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partial_rotary_factor", 0.5),
        ("no_rope_layers", [1, 0, 1]),
        ("layer_types", ["full_attention", "sliding_attention", "full_attention"]),
        ("sliding_window", 8),
        ("attention_chunk_size", 16),
        ("attn_logit_softcapping", 30.0),
        ("query_pre_attn_scalar", 256),
        ("attention_multiplier", 0.5),
    ],
)
def test_another_way_to_attend_is_another_model(model, monkeypatch, name, value):
    known = ModelFingerprint.of(model)
    monkeypatch.setattr(model.config, name, value, raising=False)
    with pytest.raises(winnow.ContextError, match=f"another model, with {name} "):
        known.check(model, "c.winnow")


def test_another_class_is_another_model(model, monkeypatch):
    known = ModelFingerprint.of(model)
    monkeypatch.setattr(model, "__class__", type("Retrieving", (type(model),), {}))
    with pytest.raises(winnow.ContextError, match="class 'LlamaForCausalLM', not 'Retrieving'"):
        known.check(model, "c.winnow")


def test_a_fingerprint_survives_saving_the_model(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    first, second = ModelFingerprint.of(model), ModelFingerprint.of(again)
    assert (first.weights, first.architecture, first.dtype) == (second.weights, second.architecture, second.dtype)
    assert (first.name, second.name) == ("", str(tmp_path.resolve()))


def test_offloaded_weights_are_named(tmp_path):
    model = made()
    context = compress(model)
    model.to("meta")
    with pytest.raises(winnow.ModelError, match="offloaded"):
        context.save(tmp_path / "c")


def test_another_tokenizer_is_refused(model, context, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    path = context.save(tmp_path / "c", tokenizer=tokenizer)
    before = hash_tokenizer(tokenizer)
    tokenizer(["a b c", "a"], padding=True, truncation=True, max_length=2)
    assert hash_tokenizer(tokenizer) == before, "padding is no part of a tokenizer"
    winnow.load_context(path, model, tokenizer=tokenizer)
    for change in (lambda t: t.add_tokens(["⟨new⟩"]), lambda t: setattr(t, "chat_template", "{{ messages }}")):
        other = AutoTokenizer.from_pretrained(MODEL_PATH)
        change(other)
        refused(path, model, "another tokenizer", tokenizer=other)
