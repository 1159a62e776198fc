"""Tokens that come one by one go a shorter way, with what the general one gives; what is unusual goes that one."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import winnow
from winnow.cache.layer import CompressedLayer
from winnow.cache.token_step import TokenStep
from winnow.errors import CacheError
from winnow.kernels import native
from winnow.kernels.step import DecodeStep

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(native.library() is None, reason="the native library was not built"),
]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=64, num_hidden_layers=2, head_dim=16, max_position_embeddings=256, **sizes)
    made = LlamaForCausalLM(config).eval().requires_grad_(False)
    made.set_attn_implementation("winnow")
    return made


def prefilled(model: LlamaForCausalLM, fold_every: int | None = None) -> winnow.CompressedCache:
    cache = winnow.CompressedCache(model, "snapkv(window=4) @ 12", fold_every=fold_every)
    model(torch.arange(60).reshape(2, 30), past_key_values=cache)
    return cache


def said(model: LlamaForCausalLM, cache: winnow.CompressedCache, *ids: int, **kwargs: object) -> Tensor:
    """Logits after new tokens, the same in both rows."""
    return model(torch.tensor([ids, ids]), past_key_values=cache, **kwargs).logits[:, -1]


def general(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on all tokens go the general way."""
    monkeypatch.setattr(TokenStep, "after", classmethod(lambda cls, *args: None))


UNUSUAL = {
    "nothing": lambda model, cache: None,
    "a chunk": lambda model, cache: said(model, cache, 5, 6, 7),
    "a padded chunk": lambda model, cache: said(
        model, cache, 5, 6, attention_mask=torch.cat([torch.ones(2, 34), torch.tensor([[1.0, 0.0], [1.0, 1.0]])], 1)
    ),
    "crop": lambda model, cache: cache.crop(-1),
    "rows in another order": lambda model, cache: cache.reorder_cache(torch.tensor([1, 0])),
    "recording": lambda model, cache: cache.activate_past_recording(),
    "a mask": lambda model, cache: said(model, cache, 5, attention_mask=torch.ones(2, 35)),
}


@pytest.mark.parametrize("fold_every", [None, 6])
@pytest.mark.parametrize("unusual", UNUSUAL)
def test_both_ways_give_the_same(model, monkeypatch, unusual, fold_every):
    def decode() -> list[Tensor]:
        cache = prefilled(model, fold_every)
        found = [said(model, cache, token) for token in range(4)]
        UNUSUAL[unusual](model, cache)
        return [*found, *(said(model, cache, token) for token in range(12))]

    short = decode()
    general(monkeypatch)
    torch.testing.assert_close(torch.stack(short), torch.stack(decode()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("fold_every", [None, 32])
def test_the_shorter_way_is_gone_from_the_second_token_on(model, monkeypatch, fold_every):
    cache = prefilled(model, fold_every)
    said(model, cache, 1)
    monkeypatch.setattr(CompressedLayer, "append", None)  # of the general way
    for token in range(8):
        said(model, cache, token)


def test_another_way_of_attending_is_noticed(model, monkeypatch):
    attention = model.model.layers[0].self_attn

    def decode() -> Tensor:
        cache = prefilled(model)
        said(model, cache, 1)
        said(model, cache, 2)
        with monkeypatch.context() as patched:
            patched.setattr(attention, "scaling", 2.0)
            return torch.stack([said(model, cache, token) for token in range(3)])

    short = decode()
    general(monkeypatch)
    torch.testing.assert_close(short, decode(), rtol=0, atol=1e-5)


def test_a_cache_of_another_model_is_refused(model):
    cache = prefilled(model)
    said(model, cache, 1)
    said(model, cache, 2)
    with pytest.raises(CacheError, match="of another model"):
        said(deepcopy(model), cache, 3)


@pytest.mark.parametrize("fold_every", [None, 32])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_token_that_was_interrupted_can_be_repeated(model, monkeypatch, fold_every, after, ragged):
    """Before the library is called, and right after it took the token."""
    cache = prefilled(model, fold_every)
    for token in range(4):
        said(model, cache, token)
    if ragged:
        UNUSUAL["a padded chunk"](model, cache)
        said(model, cache, 1)
        said(model, cache, 2)
    twin = deepcopy(cache)
    run = DecodeStep.run

    def interrupted(self: DecodeStep, *args: object) -> None:
        if after:
            run(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DecodeStep, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            said(model, cache, 3)
    cache.take_back_unfinished()
    for token in (3, 4, 5):
        torch.testing.assert_close(said(model, cache, token), said(model, twin, token), rtol=0, atol=1e-6)


def test_gradients_are_refused(model):
    cache = prefilled(model)
    said(model, cache, 1)
    said(model, cache, 2)
    embedded = torch.zeros(2, 1, 32, requires_grad=True)
    with pytest.raises(CacheError, match="gradients"):
        model(inputs_embeds=embedded, past_key_values=cache)
