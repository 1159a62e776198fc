"""Layers beside the compressed ones: they keep numbers of a prompt that was read with gradients, and no graph."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers.cache_utils import LinearAttentionLayer

from support.families import STARTING_ANEW, ZAYA, prompt
from support.small_caches import N, cache, compress, made
from winnow import CacheError, CompressedCache
from winnow.cache.sliding_layer import CompactSlidingLayer

pytestmark = pytest.mark.usefixtures("one_thread")


def stock_tensors(past: CompressedCache) -> list[torch.Tensor]:
    """All that sliding and linear layers hold."""
    found: list[torch.Tensor] = []
    for layer in past.layers:
        if isinstance(layer, CompactSlidingLayer):
            found += [layer.keys, layer.values]
        if isinstance(layer, LinearAttentionLayer):
            states = (*layer.conv_states.values(), *layer.recurrent_states.values())
            found += [each for each in states if each is not None]
    return found


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "qwen3_next", "lfm2", "falcon_h1"])
@pytest.mark.parametrize("length", [6, N], ids=["shorter than a window", "longer"])
@pytest.mark.parametrize("recording", [False, True], ids=["", "assisted decoding"])
def test_no_graph_of_a_prompt_is_kept(family: str, length: int, recording: bool) -> None:
    model = made(family)
    past, plain = cache(model), cache(model)
    if recording:
        past.activate_past_recording()
        plain.activate_past_recording()
    assert model(prompt(length=length), past_key_values=past).logits.requires_grad
    held = stock_tensors(past)
    assert held
    assert not any(each.requires_grad for each in held)
    fork = copy.deepcopy(past)
    with torch.no_grad():
        model(prompt(length=length), past_key_values=plain)
        logits = [model(prompt(length=1), past_key_values=each).logits for each in (past, fork, plain)]
    assert torch.equal(logits[0], logits[1])
    torch.testing.assert_close(logits[0], logits[2], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def row_logits(model, past: CompressedCache, rows: list[int]) -> torch.Tensor:
    """The logits [R, V] of a token of its own for each of some rows."""
    return model(prompt(2, 1, seed=4)[rows], past_key_values=past).logits[:, -1]


@pytest.mark.parametrize("family", ["qwen3_next", "lfm2", "kimi_linear", "falcon_h1", "gemma2"])
def test_other_rows(family: str) -> None:
    """Repeats and choices of rows take all layers along; a pass of other rows is refused before it changes any."""
    model = made(family)
    past = cache(model)
    with torch.no_grad():
        model(prompt(2, N), past_key_values=past)
    expected = row_logits(model, copy.deepcopy(past), [0, 1])
    for change, rows in (
        (lambda each: each.batch_repeat_interleave(2), [0, 0, 1, 1]),
        (lambda each: each.batch_select_indices(torch.tensor([1, 0, 1])), [1, 0, 1]),
        (lambda each: each.batch_select_indices(torch.tensor([-1])), [1]),
        (lambda each: each.batch_select_indices(torch.tensor([False, True])), [1]),
    ):
        twin = copy.deepcopy(past)
        change(twin)
        with pytest.raises(CacheError, match=rf"holds {len(rows)} rows, but the model now sends 5"), torch.no_grad():
            model(prompt(5, 1), past_key_values=twin)
        torch.testing.assert_close(row_logits(model, twin, rows), expected[rows], atol=1e-5, rtol=1e-5)
    with pytest.raises(IndexError):
        past.batch_select_indices(torch.tensor([2]))
    torch.testing.assert_close(row_logits(model, past, [0, 1]), expected, atol=1e-5, rtol=1e-5)


def test_a_window_beside_a_linear_state_does_not_keep_the_prompt() -> None:
    model = made("zaya", **ZAYA)
    ids = prompt(length=N + 4)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits[0, N - 1 :]
        past = CompressedCache(model, "full")
        logits = [model(ids[:, :N], past_key_values=past).logits[0, -1]]
        for token in ids[:, N:].split(1, dim=1):
            fork = copy.deepcopy(past)
            logits.append(model(token, past_key_values=past).logits[0, -1])
            assert torch.equal(model(token, past_key_values=fork).logits[0, -1], logits[-1])
    torch.testing.assert_close(torch.stack(logits), expected, atol=1e-4, rtol=1e-4)
    for layer in (past.layers[0], past.layers[2]):
        assert isinstance(layer, CompactSlidingLayer)
        assert layer.keys.shape[-2] == 7
        assert layer.keys.untyped_storage().nbytes() == layer.keys.nbytes


@pytest.mark.parametrize("family", STARTING_ANEW)
@torch.no_grad()
def test_recurrent_layers_that_start_anew_take_single_tokens_only(family: str) -> None:
    model, ids = made(family, **STARTING_ANEW[family]), prompt(length=N + 4)
    expected = model(ids, use_cache=False).logits[0, N - 1 :]
    past, refused = CompressedCache(model, "full"), "give the prompt in one piece"
    logits = [model(ids[:, :N], past_key_values=past).logits[0, -1]]
    for token in ids[:, N:].split(1, dim=1):
        with pytest.raises(CacheError, match=refused):
            model(ids[:, :2], past_key_values=past)
        logits.append(model(token, past_key_values=past).logits[0, -1])
    torch.testing.assert_close(torch.stack(logits), expected, atol=1e-4, rtol=1e-4)
    past = CompressedCache(model, "full", prompt_length=N)
    model(ids[:, :16], past_key_values=past)
    with pytest.raises(CacheError, match=refused):
        model(ids[:, 16:N], past_key_values=past)
    with pytest.raises(CacheError, match=refused):
        compress(model)
