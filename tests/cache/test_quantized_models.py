"""Caches of models whose weights are quantized, by winnow or by a library: exact, and scorers read the right matrix."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

import winnow
from support.contexts import answer, refused
from support.families import build, prompt
from support.oracle import masked_logits, oracle_attention
from support.small_caches import method
from winnow.cache.projection import output_projection
from winnow.cache.replay_words import ReplayWords
from winnow.errors import ModelError
from winnow.models import quantize_weights
from winnow.models.int8 import Int8Linear

pytestmark = pytest.mark.usefixtures("one_thread")
N, STEPS = 40, 8
WORDS = ReplayWords(*map(torch.tensor, ([3, 4], [5, 6], [7])))
SCHEMES = ("int8", "int4", "torchao int8", "torchao int4", "quanto int8")


def quantized(scheme: str, family: str = "llama") -> PreTrainedModel:
    model = build(family)
    if scheme.startswith("torchao"):
        _torchao(model, scheme)
    elif scheme.startswith("quanto"):
        quanto = pytest.importorskip("optimum.quanto")
        quanto.quantize(model, weights=quanto.qint8, exclude="lm_head")
        quanto.freeze(model)
    else:
        quantize_weights(model, scheme)
    model.set_attn_implementation("winnow")
    return model


def _torchao(model: PreTrainedModel, scheme: str) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    if scheme.endswith("int8"):
        config = torchao.Int8WeightOnlyConfig()
    else:
        config = torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(32))
    torchao.quantize_(model.model, config)


@pytest.fixture(scope="module", params=SCHEMES)
def model(request) -> PreTrainedModel:
    made = quantized(request.param)
    made.scheme = request.param
    return made


def stepwise(model: PreTrainedModel, ids: torch.Tensor, cache) -> torch.Tensor:
    """Logits [1 + STEPS, V]: of the prompt's last token, then of the others one by one."""
    with torch.no_grad():
        parts = [model(ids[:, :N], past_key_values=cache).logits[0, -1:]]
        parts += [model(ids[:, i : i + 1], past_key_values=cache).logits[0] for i in range(N, N + STEPS)]
    return torch.cat(parts)


def test_room_for_everything_changes_nothing(model):
    ids = prompt(length=N + STEPS)
    with oracle_attention(model):
        expected = stepwise(model, ids, DynamicCache(config=model.config))
    for name in ("full", f"adakv @ {N}"):
        found = stepwise(model, ids, winnow.CompressedCache(model, name))
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_a_small_budget_is_dense_attention_with_evicted_entries_masked(model):
    ids = prompt(length=N + STEPS)
    cache = winnow.CompressedCache(model, method())
    found = stepwise(model, ids, cache)
    expected = masked_logits(model, ids, N, cache.kept)[0, N - 1 :]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    unmasked = masked_logits(model, ids, N, lambda _: None)[0, N - 1 :]
    assert (found - unmasked).abs().max() > 1e-2


def test_heads_outputs_times_the_projection_are_the_modules_output(model):
    attention = model.model.layers[1].self_attn
    matrix = output_projection(attention, heads=4, dim=16)
    assert matrix.shape == (4, 16, 64)
    inputs = torch.randn(5, 4, 16)
    with torch.no_grad():
        expected = attention.o_proj(inputs.flatten(1))
    torch.testing.assert_close(torch.einsum("nhd,hde->ne", inputs, matrix), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["criticalkv", "kvzip-plus", "expectedattention+critical", "snapkv+think", "snapkv+spark"]
)
def test_what_reads_weights_keeps_what_it_keeps_with_plain_ones(model, name):
    """The tokens that stay are those that stay with the same numbers in plain layers."""
    ids = prompt(length=N)
    kept = []
    for each in (model, written_out(model)):
        cache = winnow.compress(each, ids, f"{name} @ 9", tokenizer=WORDS).cache()
        kept.append([cache.kept(layer) for layer in range(3)])
    for found, expected in zip(*kept, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def written_out(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with plain layers, found by what linear ones do to unit vectors, and what tokens embed as."""
    plain = build("llama")
    plain.set_attn_implementation("winnow")
    for parent, before in zip(list(plain.modules()), list(model.modules()), strict=True):
        for name, layer in list(before.named_children()):
            if hasattr(layer, "in_features"):
                made = nn.Linear(layer.in_features, layer.out_features, bias=False)
                with torch.no_grad():
                    made.weight.copy_(layer(torch.eye(layer.in_features)).T)
                setattr(parent, name, made)
            elif hasattr(layer, "num_embeddings"):
                getattr(parent, name).weight.data.copy_(layer(torch.arange(layer.num_embeddings)))
    return plain


def test_contexts_come_back_and_tell_other_weights_apart(model, tmp_path):
    context = winnow.compress(model, prompt(length=N), method())
    path = context.save(tmp_path / "c")
    again = quantized(model.scheme)
    assert torch.equal(answer(again, winnow.load_context(path, again)), answer(model, context))
    told = "with int[84] weights, but the model has plain ones" if model.scheme in ("int8", "int4") else "other weights"
    plain = build("llama")
    plain.set_attn_implementation("winnow")
    refused(path, plain, told)


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_models_with_latents(scheme):
    model = quantized(scheme, "deepseek_v3")
    assert type(model.model.layers[0].self_attn.kv_b_proj) is Int8Linear
    ids = prompt(length=N + STEPS)
    with oracle_attention(model):
        expected = stepwise(model, ids, DynamicCache(config=model.config))
    found = stepwise(model, ids, winnow.CompressedCache(model, f"snapkv @ {N}"))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_libraries_that_cannot_write_a_weight_out_are_refused():
    model = build("llama", num_hidden_layers=1)
    model.set_attn_implementation("winnow")
    weight = nn.Parameter(torch.zeros(64, 64, dtype=torch.uint8), requires_grad=False)
    model.model.layers[0].self_attn.o_proj.weight = weight
    with pytest.raises(ModelError, match=r"no plain weight \(quantized or fused\?\).*snapkv instead of criticalkv"):
        winnow.CompressedCache(model, winnow.method("criticalkv", 20))
