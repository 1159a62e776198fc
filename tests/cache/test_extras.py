"""Extras of a model: shown to who asks, and nothing is copied or kept."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy

import pytest
import torch

import winnow
from support.families import build, prompt
from support.watching import N, watching
from winnow.errors import CacheError
from winnow.view import Extra


def test_only_who_asks_is_shown() -> None:
    model = build("llama")
    model.set_attn_implementation("winnow")
    for asks in (Extra.NONE, Extra.ROTATION, Extra.OUTPUT_PROJECTION):
        method, views = watching(asks)
        with torch.no_grad():
            model(prompt(length=N), past_key_values=winnow.CompressedCache(model, method))
        assert {(view.rotation is not None, view.output_projection is not None) for view in views} == {
            (asks is Extra.ROTATION, asks is Extra.OUTPUT_PROJECTION)
        }


def test_a_cache_neither_copies_nor_keeps_its_model() -> None:
    model = build("llama")
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, winnow.method("full"), defer=True)
    with torch.no_grad():
        model(prompt(length=N), past_key_values=cache)
    method = winnow.method("expectedattention+critical", 12)
    fork = deepcopy(cache)
    assert fork.compressed_layers()[0].compressor.attention() is model.model.layers[0].self_attn
    first, second = cache.compressed_by(method), fork.compressed_by(method)
    for layer in range(3):
        for one, other in zip(first.kept(layer), second.kept(layer), strict=True):
            assert torch.equal(one, other)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    with pytest.raises(CacheError, match="was deleted"):
        cache.compressed_by(method)
