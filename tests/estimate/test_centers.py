"""Query centers of a model against its own projections, before anything is rotated."""

from __future__ import annotations

import pytest
import torch

import winnow
from support.families import build, prompt
from winnow.errors import CacheError
from winnow.estimate.centers import measure_centers


def test_centers_are_those_of_the_projections() -> None:
    model, ids = build("llama"), prompt(length=60)
    seen: list[torch.Tensor] = []
    hooks = [
        layer.self_attn.q_proj.register_forward_hook(lambda module, given, out: seen.append(out[0]))
        for layer in model.model.layers
    ]
    model.set_attn_implementation("winnow")
    found = measure_centers(model, ids)
    for hook in hooks:
        hook.remove()
    projected = seen[-len(hooks) :]  # before, the rotation was found out
    heads, dim = model.config.num_attention_heads, model.config.head_dim
    for layer in range(len(model.model.layers)):
        queries = projected[layer].double().view(60, heads, dim)[4:]
        torch.testing.assert_close(found.mean[layer].double(), queries.mean(0), rtol=1e-4, atol=1e-5)
        pairs = torch.hypot(queries[..., : dim // 2], queries[..., dim // 2 :])
        torch.testing.assert_close(found.sizes[layer, :, : dim // 2].double(), pairs.mean(0), rtol=1e-4, atol=1e-5)
    assert found.tokens == 56


def test_too_short_a_text() -> None:
    model = build("llama")
    model.set_attn_implementation("winnow")
    with pytest.raises(CacheError, match="a text of 4 tokens"):
        measure_centers(model, prompt(length=4))


def test_with_centers_no_query_is_kept() -> None:
    """Turns fold without fold_every, and what is kept does not depend on who asks when."""
    model = build("llama")
    model.set_attn_implementation("winnow")
    method = winnow.method("triattention", 12, centers=measure_centers(model, prompt(length=50, seed=9)))
    cache = winnow.CompressedCache(model, method, fold_turns=4)
    ids = prompt(length=40)
    with torch.no_grad():
        for part in ids.split([20, 12, 1, 7], dim=1):
            model(part, past_key_values=cache)
    assert cache.stats().other_bytes == 0
    assert all(sum(layer) == 24 for layer in cache.stats().slots)
    assert all(prefix.moments is None for layer in cache.compressed_layers() for prefix in layer.prefixes)
