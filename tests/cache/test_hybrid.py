"""Layers beside the compressed ones: they keep numbers of a prompt that was read with gradients, and no graph."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers.cache_utils import LinearAttentionLayer

from support.families import prompt
from support.small_caches import N, cache, made
from winnow import CompressedCache
from winnow.cache.hybrid import CompactSlidingLayer

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
