"""The argument for a cache, by the name that a model has for it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache

import winnow
from support.families import EVERY, build, build_any, prompt
from support.older_code import OlderForward
from winnow.models.cache_argument import cache_name, generation_name, given_cache, with_cache

pytestmark = pytest.mark.usefixtures("one_thread")


class Wrapped(nn.Module):
    """A model in a wrapper that passes on all that it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


def test_names_are_those_of_signatures() -> None:
    def renamed(ids: Any, cache: Any = None, **others: Any) -> None: ...
    def older(ids: Any, past_key_values: Any = None) -> None: ...
    def neither(*given: Any, **named: Any) -> None: ...

    assert cache_name(renamed) == "cache"
    assert cache_name(older) == "past_key_values"
    assert cache_name(neither) is None
    assert cache_name(functools.wraps(renamed)(lambda *given, **named: None)) == "cache"
    assert cache_name(lambda layer_past: None, ("cache", "layer_past")) == "layer_past"


def test_a_cache_is_found_by_either_name() -> None:
    cache = DynamicCache()
    assert given_cache({"cache": cache, "past_key_values": None}) is cache
    assert given_cache({"cache": None, "past_key_values": cache}) is cache
    assert given_cache({"use_cache": True}) is None


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("family", EVERY)
def test_models_fill_the_cache_without_a_warning(family: str) -> None:
    model = build_any(family)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    with torch.no_grad():
        model(input_ids=prompt(length=12), **with_cache(model, cache))
    assert cache.get_seq_length() == 12


@pytest.mark.filterwarnings("error::FutureWarning")
def test_wrappers_pass_on_what_generation_would_give() -> None:
    model, cache = build("llama"), DynamicCache()
    with torch.no_grad():
        Wrapped(model)(input_ids=prompt(length=12), **with_cache(Wrapped(model), cache))
    assert cache.get_seq_length() == 12
    assert generation_name() == cache_name(type(model).forward)


@pytest.mark.filterwarnings("error::FutureWarning")
def test_models_with_older_code_keep_their_name() -> None:
    plain = build("llama")
    model = OlderForward(plain.config).eval()
    model.load_state_dict(plain.state_dict())
    found = []
    for each in (plain, model):
        each.set_attn_implementation("winnow")
        cache = winnow.compress(each, prompt(length=40), "snapkv @ 50%", chunk_size=16).cache()
        with torch.no_grad():
            found.append(each(input_ids=prompt(length=3, seed=1), **with_cache(each, cache)).logits)
    assert list(with_cache(model, cache)) == ["past_key_values", "use_cache"]
    assert torch.equal(*found)
