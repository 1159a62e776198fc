"""Layers that tell how far a prefill is, of many architectures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import winnow
from support.asked import encoded
from support.families import EVERY, build_any
from winnow.evaluate.decoding import prefill
from winnow.evaluate.layer_steps import decoder_layers, layers_watched

pytestmark = pytest.mark.usefixtures("one_thread")


def hooks(model):
    return sum(len(module._forward_hooks) for module in model.modules())


@pytest.mark.parametrize("chunk", [None, 50])
def test_shares_sum_to_the_tokens_and_change_nothing(model, source, chunk):
    ids, told = encoded(source), []
    before = prefill(model, ids, cache(model, ids), chunk)
    with layers_watched(model, told.append):
        after = prefill(model, ids, cache(model, ids), chunk)
    assert torch.equal(before, after)
    assert sum(told) == pytest.approx(ids.shape[1])
    chunks = 1 if chunk is None else -(-ids.shape[1] // chunk)
    assert len(told) == chunks * model.config.num_hidden_layers
    assert hooks(model) == 0


def cache(model, ids):
    return winnow.CompressedCache(model, winnow.method("adakv", 24), prompt_length=ids.shape[1])


def test_hooks_are_removed_where_the_prefill_fails(model, source):
    def interrupt(_):
        raise KeyboardInterrupt

    ids = encoded(source)
    with pytest.raises(KeyboardInterrupt), layers_watched(model, interrupt):
        prefill(model, ids, cache(model, ids))
    assert hooks(model) == 0


@pytest.mark.parametrize("name", EVERY)
def test_the_layers_of_every_family_are_found(name):
    model = build_any(name)
    layers = decoder_layers(model)
    assert len(layers) == model.config.get_text_config(decoder=True).num_hidden_layers
    ids, told = torch.arange(10)[None], []
    with torch.no_grad(), layers_watched(model, told.append):
        model(input_ids=ids)
    assert sum(told) == pytest.approx(10)


def test_nothing_is_told_of_a_model_without_layers_to_be_found(model, source, monkeypatch):
    monkeypatch.setattr(type(model), "get_decoder", lambda _: nn.Linear(1, 1))
    told = []
    with layers_watched(model, told.append):
        prefill(model, encoded(source), cache(model, encoded(source)))
    assert told == []
