"""A prompt that was read within `torch.inference_mode()`, and an answer outside of it."""

from __future__ import annotations

import pytest
import torch

import winnow
from support.families import prompt


def answered(model, method, within, fold_every):
    """Logits behind a prompt and twelve tokens; the prompt and one token are read `within` a mode, the rest is not."""
    cache = winnow.CompressedCache(model, method, fold_every=fold_every)
    with within:
        model(prompt(length=40), past_key_values=cache)
        model(torch.tensor([[5]]), past_key_values=cache)
    with torch.no_grad():
        if fold_every is None:
            cache.crop(-1)
        for token in range(6, 17):
            model(torch.tensor([[token]]), past_key_values=cache)
        cache.batch_repeat_interleave(2)
        return model(torch.tensor([[7], [8]]), past_key_values=cache).logits


@pytest.mark.parametrize(
    ("method", "fold_every"), [("full", None), ("snapkv @ 16", None), ("adakv+bits(8) @ 32", 4), ("h2o @ 32", 4)]
)
def test_a_cache_goes_on_outside(model, method, fold_every):
    expected = answered(model, method, torch.no_grad(), fold_every)
    found = answered(model, method, torch.inference_mode(), fold_every)
    assert torch.equal(found, expected)
