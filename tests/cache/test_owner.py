"""The model that a cache belongs to, and who may go on with it when that is gone."""

from __future__ import annotations

import gc

import pytest
import torch

import winnow
from support.families import prompt
from support.small_caches import N, cache, compress, made
from winnow import CacheError

pytestmark = pytest.mark.usefixtures("one_thread")


@torch.no_grad()
def step(model, past) -> torch.Tensor:
    return model(prompt(length=3), past_key_values=past)[0]


def test_a_loaded_context_whose_model_is_gone(tmp_path) -> None:
    model = made()
    path = compress(model).save(tmp_path / "context.safetensors")
    past = winnow.load_context(path, model).cache()
    del model
    gc.collect()
    with pytest.raises(CacheError, match=r"of a model that is gone, .*or load the context with that model"):
        step(made(seed=1), past)


def test_a_cache_without_a_prompt_whose_model_is_gone() -> None:
    model = made()
    past = cache(model)
    del model
    gc.collect()
    with pytest.raises(CacheError, match=r"of a model that is gone, .*make a CompressedCache for the model"):
        step(made(seed=1), past)


def test_a_part_goes_on_without_the_model_around_it(tmp_path) -> None:
    model = made()
    path = compress(model).save(tmp_path / "context.safetensors")
    past, plain = (winnow.load_context(path, model).cache() for _ in range(2))
    empty = cache(model)
    expected, part = step(model.model, plain), model.model
    del model
    gc.collect()
    assert torch.equal(step(part, past), expected)
    with torch.no_grad():
        part(prompt(length=N), past_key_values=empty)
    with pytest.raises(CacheError, match="of another model"):
        step(made(seed=1), past)
