"""Every supported family: exact with room for everything, against a masked oracle with little room, from a file."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

import winnow
from support.families import EVERY, build_any, prompt
from support.oracle import full_layers, masked_logits, oracle_attention

PROMPT, STEPS = 40, 8
TOLERANCE = 1e-5
LINEAR = {"qwen3_next": 1e-4, "lfm2": 1e-4, "falcon_h1": 1e-4}
"""Recurrent layers are computed by another formula when stepping than over a whole sequence."""


def decode(model: PreTrainedModel, ids: torch.Tensor, cache, steps: int = STEPS) -> torch.Tensor:
    """Logits [R, 1 + steps, V]: of the prompt's last token, then of ids' further tokens fed one by one."""
    length = ids.shape[1] - steps
    logits = []
    with torch.no_grad():
        logits.append(model(ids[:, :length], past_key_values=cache, use_cache=True).logits[:, -1:])
        for i in range(length, ids.shape[1]):
            logits.append(model(ids[:, i : i + 1], past_key_values=cache, use_cache=True).logits)
    return torch.cat(logits, dim=1)


def stock_cache(model: PreTrainedModel) -> DynamicCache:
    return DynamicCache(config=model.config.get_text_config(decoder=True))


@pytest.fixture(scope="module", params=EVERY)
def model(request) -> PreTrainedModel:
    made = build_any(request.param)
    made.family = request.param
    return made


def test_room_for_everything_changes_nothing(model):
    ids = prompt(rows=2, length=PROMPT + STEPS)
    with oracle_attention(model):
        expected = decode(model, ids, stock_cache(model))
    model.set_attn_implementation("winnow")
    for method in (winnow.method("full"), winnow.method("adakv", budget=PROMPT, window=4)):
        logits = decode(model, ids, winnow.CompressedCache(model, method))
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)
        assert torch.equal(logits.argmax(-1), expected.argmax(-1))


def test_a_small_budget_is_dense_attention_with_evicted_entries_masked(model):
    ids = prompt(length=PROMPT + STEPS)
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, winnow.method("adakv", budget=9, window=3, floor=0.0))
    logits = decode(model, ids, cache)
    full = full_layers(model)
    slots = cache.stats().slots
    assert [sum(heads) for heads in slots] == [9 * len(heads) for heads in slots]
    expected = masked_logits(model, ids, PROMPT, lambda i: cache.kept(i) if i in full else None)[:, PROMPT - 1 :]
    tolerance = LINEAR.get(model.family, TOLERANCE)
    torch.testing.assert_close(logits, expected, atol=tolerance, rtol=tolerance)
    # The check above means something only where eviction changes the result and heads differ.
    unmasked = masked_logits(model, ids, PROMPT, lambda i: None)[:, PROMPT - 1 :]
    assert (logits - unmasked).abs().max() > 100 * tolerance
    if model.family not in ("gemma", "gpt2"):
        assert any(len(set(heads)) > 1 for heads in slots)


def test_a_padded_batch_comes_back_from_a_file(model, tmp_path):
    ids, mask = prompt(rows=2, length=PROMPT), torch.ones(2, PROMPT, dtype=torch.int64)
    mask[1, :13] = 0
    model.set_attn_implementation("winnow")
    context = winnow.compress(model, ids, winnow.method("adakv", budget=9, window=3), attention_mask=mask)
    loaded = winnow.load_context(context.save(tmp_path / "context"), model)
    assert loaded.stats() == context.stats()
    new, seen = prompt(rows=2, length=3, seed=5), torch.cat([mask, torch.ones(2, 3, dtype=torch.int64)], dim=1)
    with torch.no_grad():
        saved, back = (
            model(new, past_key_values=each.cache(), attention_mask=seen, use_cache=True).logits
            for each in (context, loaded)
        )
    assert torch.equal(saved, back)
