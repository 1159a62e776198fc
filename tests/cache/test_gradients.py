"""Gradients: exact through a prompt, refused over what a cache holds."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from support.families import build, prompt
from support.small_caches import GREEDY, N, cache, made
from winnow import CacheError

FAMILIES = ["llama", "gemma2", "gemma3n_text", "gpt_oss", "qwen3_next", "lfm2", "falcon_h1"]


def gradients(model, past) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(prompt(length=N), past_key_values=past).logits.square().mean().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_a_prompt_are_those_without_compression(family):
    model = build(family)
    model.set_attn_implementation("eager")
    expected = gradients(model, DynamicCache(config=model.config))
    model.set_attn_implementation("winnow")
    found = gradients(model, cache(model))
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_with_gradients_is_refused_and_changes_nothing(family):
    model = made(family)
    past, plain = cache(model), cache(model)
    with torch.no_grad():
        for each in (past, plain):
            model(prompt(length=N), past_key_values=each)
    for tokens in (prompt(length=1), prompt(length=3)):
        with pytest.raises(CacheError, match=r"gradients.*no_grad.*requires_grad_\(False\)"):
            model(tokens, past_key_values=past)
    with torch.no_grad():
        logits = [model(prompt(length=1), past_key_values=each).logits for each in (past, plain)]
    assert torch.equal(*logits)


def test_queries_alone_want_gradients():
    """As with an adapter on the query projections."""
    model = made().requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.requires_grad_(True)
    past = cache(model)
    model(prompt(length=N), past_key_values=past)
    with pytest.raises(CacheError, match="gradients"):
        model(prompt(length=1), past_key_values=past)
    with torch.no_grad():
        model(prompt(length=1), past_key_values=past)


def test_later_parts_of_a_prompt_are_refused():
    model = made()
    past = cache(model, prompt_length=N)
    assert model(prompt(length=9), past_key_values=past).logits.requires_grad
    with pytest.raises(CacheError, match="gradients"):
        model(prompt(length=9), past_key_values=past)


def test_frozen_models_inference_and_generate_need_nothing_else():
    model = made()
    model.generate(prompt(length=N), past_key_values=cache(model), pad_token_id=0, **GREEDY)
    with torch.inference_mode():
        past = cache(model)
        for length in (N, 1, 3):
            model(prompt(length=length), past_key_values=past)
    model.requires_grad_(False)
    past = cache(model)
    for length in (N, 1, 3):
        assert not model(prompt(length=length), past_key_values=past).logits.requires_grad


def test_inputs_that_want_gradients_over_a_frozen_model_are_told():
    """As the embeddings of a prompt that is to be learned."""
    model = made().requires_grad_(False)
    past = cache(model)
    model(prompt(length=N), past_key_values=past)
    inputs = model.get_input_embeddings()(prompt(length=3)).requires_grad_(True)
    with pytest.raises(CacheError, match="detach the inputs"):
        model(inputs_embeds=inputs, past_key_values=past)
    model(inputs_embeds=inputs.detach(), past_key_values=past)
