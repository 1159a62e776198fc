"""Compiled models: torch.compile leaves the cache and its attention alone, and the model decodes as it did."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import winnow

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 4


def made(layers: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=64, num_hidden_layers=layers, head_dim=16, max_position_embeddings=128, **sizes)
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation("winnow")
    return model


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def decode(model, run, after_step=lambda step: None):
    """Logits of STEPS greedy steps after a prompt of two rows."""
    ids = torch.arange(48).reshape(2, 24) % 64
    cache, found = winnow.CompressedCache(model, "adakv @ 12", fold_every=2), []
    with torch.no_grad():
        for step in range(STEPS):
            found.append(run(ids, past_key_values=cache, use_cache=True).logits[:, -1])
            ids = found[-1].argmax(-1)[:, None]
            after_step(step)
    return torch.stack(found)


def test_a_compiled_model_decodes_as_it_did():
    model = made(layers=1)
    expected = decode(model, model)
    torch.testing.assert_close(decode(model, torch.compile(model, backend="eager")), expected, rtol=0, atol=0)


def test_compiled_layers_decode_as_they_did_and_are_compiled_once_for_decoding():
    model = made(layers=2)
    expected = decode(model, model)
    for layer in model.model.layers:
        layer.compile(backend="aot_eager")
    graphs = []
    stats = torch._dynamo.utils.counters["stats"]
    found = decode(model, model, lambda step: graphs.append(stats["unique_graphs"]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert graphs[0] > 0
    assert graphs[-1] == graphs[1]
    broken = torch._dynamo.utils.counters["graph_break"]
    assert {
        name for name in ("CompressedCache.update", "winnow_attention") if any(name in each for each in broken)
    } == {
        "CompressedCache.update",
        "winnow_attention",
    }
    assert len(broken) == 2
