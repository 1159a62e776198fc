"""Coalitions of heads as rows over one prefix: equal to masked dense attention, and nothing is copied."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import winnow
from support.alive import alive, alive_since
from support.families import prompt
from support.oracle import full_layers, masked_logits
from support.small_caches import made
from winnow import CompressedCache, HeadScores
from winnow.errors import CacheError

N, NEW, WINDOW = 60, 6, 8


def filled(model, ids: Tensor, method: winnow.Method | None = None) -> CompressedCache:
    cache = CompressedCache(model, method or winnow.method("full"))
    with torch.no_grad():
        model(ids, past_key_values=cache)
    return cache


def random_masks(count: int, layers: int, heads: int, seed: int = 0) -> Tensor:
    masks = torch.rand(count, layers, heads, generator=torch.Generator().manual_seed(seed)) < 0.5
    masks[0], masks[1] = True, False
    return masks


def decoded(model, cache: CompressedCache, tokens: Tensor) -> Tensor:
    """Logits [C, T, V] of tokens [C, T], fed one by one."""
    steps = []
    with torch.no_grad():
        for step in tokens.split(1, dim=1):
            positions = torch.full((len(tokens), 1), cache.get_seq_length())
            steps.append(model(step, position_ids=positions, past_key_values=cache).logits)
    return torch.cat(steps, dim=1)


@pytest.mark.parametrize(
    "family",
    ["llama", "smollm3", "gemma2", "gpt_oss", "gpt2", "gemma3n_text", "qwen3_next", "lfm2", "falcon_h1"],
)
def test_rows_equal_masked_dense_attention(family):
    model = made(family)
    ids = prompt(length=N + NEW)
    cache = filled(model, ids[:, :N])
    layers = full_layers(model)
    heads = cache.compression.heads[0]
    masks = random_masks(5, len(layers), heads)
    rows = cache.coalitions(masks, WINDOW)
    found = decoded(model, rows, ids[:, N:].expand(len(masks), -1))

    def kept_by(mask: Tensor):
        everything, window = torch.arange(N), torch.arange(N - WINDOW, N)
        return lambda layer: (
            [everything if inside else window for inside in mask[layers.index(layer)].tolist()]
            if layer in layers
            else None
        )

    for mask, logits in zip(masks, found, strict=True):
        expected = masked_logits(model, ids, N, kept_by(mask))[0, N:]
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-4)


def test_rows_hold_what_the_masking_allocator_keeps(model):
    """The method behind CoKV's tables, for the same heads; StreamingLLM without sinks guarantees the window alone."""
    ids = prompt(length=N)
    scores = HeadScores(torch.rand(3, 2, generator=torch.Generator().manual_seed(3)) + 0.1, "random")
    masked_out = torch.zeros(6, dtype=torch.bool)
    masked_out[torch.argsort(scores.values.flatten(), descending=True)[:3]] = True
    rows = filled(model, ids).coalitions(~masked_out.view(1, 3, 2), WINDOW)
    masking = winnow.method(f"snapkv(window={WINDOW})+masking", scores=scores, count=3)
    expected = filled(model, ids, masking)
    for layer in range(3):
        for ours, theirs in zip(rows.kept(layer), expected.kept(layer), strict=True):
            assert torch.equal(ours, theirs)
    new = prompt(length=NEW, seed=5)
    assert torch.equal(decoded(model, rows, new), decoded(model, expected, new))


def test_rows_share_memory(model):
    cache = filled(model, prompt(length=N))
    rows = cache.coalitions(random_masks(40, 3, 2), WINDOW)
    for ours, theirs in zip(cache.compressed_layers(), rows.compressed_layers(), strict=True):
        block = ours.prefixes[0].block
        for prefix in theirs.prefixes:
            assert prefix.block.keys.data_ptr() == block.keys.data_ptr()
            assert prefix.block.values.data_ptr() == block.values.data_ptr()
            assert prefix.positions.data_ptr() == ours.prefixes[0].positions.data_ptr()
    one, many = cache.stats(), rows.stats()
    assert many.rows == 40
    assert many.slots == one.slots
    assert {kind: many.bytes[kind] for kind in ("keys", "values")} == {
        kind: one.bytes[kind] for kind in ("keys", "values")
    }


def test_held_bytes_are_the_bytes_of_the_tensors_alive(model):
    """Nobody holds a copy that the statistics do not tell of."""

    ids, masks = prompt(length=N), random_masks(40, 3, 2)
    filled(model, ids).coalitions(masks, WINDOW)
    before = alive()
    rows = filled(model, ids).coalitions(masks, WINDOW)
    added = alive_since(before)
    assert sum(added.values()) == rows.stats().held_bytes


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.integers(1, 30), window=st.integers(0, 40))
def test_what_each_head_reads(model, seed: int, length: int, window: int):
    masks = random_masks(4, 3, 2, seed)
    rows = filled(model, prompt(length=length)).coalitions(masks, window)
    for row, mask in enumerate(masks):
        for layer in range(3):
            for head, positions in enumerate(rows.kept(layer, row)):
                first = 0 if mask[layer, head] else max(0, length - window)
                assert positions.tolist() == list(range(first, length))


def test_coalitions_of_what_another_method_kept(model):
    ids = prompt(length=N)
    cache = filled(model, ids, winnow.method("snapkv", budget=20, window=WINDOW))
    rows = cache.coalitions(random_masks(3, 3, 2), 4)
    assert [each.tolist() for each in rows.kept(1, 0)] == [each.tolist() for each in cache.kept(1)]
    assert [each.tolist() for each in rows.kept(1, 1)] == [list(range(N - 4, N))] * 2


def test_later_tokens_and_the_original_stay_as_they_were(model):
    """A cache that was decoded from can be forked as well, and forking leaves no trace in it."""
    ids = prompt(length=N + NEW)
    cache, twin = filled(model, ids[:, :N]), filled(model, ids[:, :N])
    decoded(model, cache, ids[:, N : N + 2])
    rows = cache.coalitions(torch.ones(2, 3, 2, dtype=torch.bool), WINDOW)
    found = decoded(model, rows, ids[:, N + 2 :].expand(2, -1))
    expected = decoded(model, twin, ids[:, N:])[:, 2:]
    torch.testing.assert_close(found, expected.expand(2, -1, -1), rtol=1e-4, atol=1e-4)
    assert cache.get_seq_length() == N + 2


def test_rows_can_leave(model):
    ids = prompt(length=N)
    rows = filled(model, ids).coalitions(random_masks(4, 3, 2), WINDOW)
    rows.reorder_cache(torch.tensor([3, 1]))
    whole = filled(model, ids).coalitions(random_masks(4, 3, 2), WINDOW)
    new = prompt(length=NEW, seed=5)
    found, expected = decoded(model, rows, new.expand(2, -1)), decoded(model, whole, new.expand(4, -1))
    torch.testing.assert_close(found, expected[[3, 1]], rtol=1e-4, atol=1e-4)


def test_what_is_refused(model):
    cache, masks = filled(model, prompt(length=N)), random_masks(2, 3, 2)
    with pytest.raises(CacheError, match="single row"):
        filled(model, prompt(rows=2, length=N)).coalitions(masks, WINDOW)
    with pytest.raises(CacheError, match="single row"):
        CompressedCache(model, winnow.method("full")).coalitions(masks, WINDOW)
    for wrong in (masks.float(), masks[0], masks[:, :2], masks[:, :, :1], masks[:0]):
        with pytest.raises(CacheError, match=r"masks must be a bool tensor \[coalitions, 3, 2\]"):
            cache.coalitions(wrong, WINDOW)
    with pytest.raises(CacheError, match="window is -1"):
        cache.coalitions(masks, -1)


def test_what_every_row_reads_of_the_prefix_counts():
    model = made("llama")
    cache = filled(model, prompt(length=N))
    masks = torch.tensor([[False, True], [True, False], [True, True]])[:, None].expand(-1, len(full_layers(model)), -1)
    layer = cache.coalitions(masks, WINDOW).compressed_layers()[0]
    whole, view = layer.bytes()["indices"], layer.prefixes[0]
    layer.prefixes = [view] * 3
    assert whole - layer.bytes()["indices"] == 2 * view.view_bytes() > 0
