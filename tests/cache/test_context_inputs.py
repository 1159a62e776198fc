"""Inputs that come with a prompt besides its tokens: images, adapters, and models in the wrapper of one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import winnow
from support.families import VOCABULARY, prompt, vision_models
from support.small_caches import GREEDY, N
from winnow.models.adapters import check_prompt_learning

IMAGE_TOKEN = VOCABULARY - 1
PATCHES = {"pixel_values": torch.randn(16, 3 * 2 * 8 * 8), "image_grid_thw": torch.tensor([[1, 4, 4]])}


class Wrapper(nn.Module):
    """A model in a wrapper as PEFT's, whose forward pass takes whatever comes."""

    def __init__(self, model: nn.Module, **config: object) -> None:
        super().__init__()
        self.base_model = nn.Module()
        self.base_model.model = model
        self.active_peft_config = SimpleNamespace(**config)

    def get_base_model(self) -> nn.Module:
        return self.base_model.model

    def forward(self, *args: object, **named: object):
        return self.get_base_model()(*args, **named)

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.get_base_model(), name)


def with_an_image():
    """Tokens of a prompt, and the image in it, for Qwen-VL."""
    ids = prompt(length=N).clamp(max=90)
    ids[0, 6:10] = IMAGE_TOKEN
    return ids, {**PATCHES, "mm_token_type_ids": (ids == IMAGE_TOKEN).int()}


def logits(model, context):
    """[steps, V] of an answer behind a context."""
    ids = torch.cat([context.input_ids, prompt(length=4, seed=3).clamp(max=90)], dim=1)
    asked = {"output_logits": True, "return_dict_in_generate": True, "pad_token_id": 0}
    return torch.cat(model.generate(ids, past_key_values=context.cache(), **GREEDY, **asked).logits)


@pytest.mark.parametrize("given", ["tensor", "list"])
def test_a_prompt_with_images_is_read_at_once(model, given):
    pixels = torch.zeros(1, 3, 16, 16)
    inputs = {"pixel_values": pixels if given == "tensor" else [pixels]}
    with pytest.raises(winnow.CacheError, match=r"pixel_values cannot be divided into chunks: .*leave chunk_size out"):
        winnow.compress(model, prompt(length=N), "full", chunk_size=N - 1, **inputs)


@pytest.mark.parametrize("chunk", [N, N + 9])
def test_a_chunk_as_long_as_the_prompt_parts_no_images(chunk):
    model = vision_models()["qwen3_vl"]()
    model.set_attn_implementation("winnow")
    ids, inputs = with_an_image()
    expected = logits(model, winnow.compress(model, ids, "full", **inputs))
    found = logits(model, winnow.compress(model, ids, "full", chunk_size=chunk, **inputs))
    torch.testing.assert_close(found, expected)


def test_what_is_no_tensor_comes_with_every_chunk(model):
    came = []
    wrapped = Wrapper(model, is_prompt_learning=False)
    model.register_forward_pre_hook(
        lambda module, args, named: came.append(named.pop("adapter_names")) or (args, named), with_kwargs=True
    )
    try:
        winnow.compress(wrapped, prompt(length=N), "full", chunk_size=15, adapter_names=["one"])
    finally:
        model._forward_pre_hooks.clear()
    assert came == [["one"]] * 3


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_contexts_of_a_wrapped_model_keep_the_positions_behind_their_images(family):
    """Its `base_model` is the wrapper's own; the offsets lie in the model inside."""
    inner = vision_models()[family]()
    inner.set_attn_implementation("winnow")
    model = Wrapper(inner, is_prompt_learning=False)
    ids, inputs = with_an_image()
    context = winnow.compress(model, ids, "full", **inputs)
    expected = logits(model, context)
    winnow.compress(model, prompt(length=N).clamp(max=90), "full")
    inner.generate(prompt(length=N).clamp(max=90), pad_token_id=0, **GREEDY)
    torch.testing.assert_close(logits(model, context), expected, atol=1e-6, rtol=0)


def test_padding_of_a_wrapped_model(model):
    """Its forward pass names no positions; that of the model inside does."""
    ids, mask = prompt(rows=2, length=N), torch.ones(2, N, dtype=torch.int64)
    mask[0, :13] = 0
    found = winnow.compress(Wrapper(model), ids, "full", attention_mask=mask)
    expected = winnow.compress(model, ids, "full", attention_mask=mask)
    keys = [each.cache().compressed_layers()[1].prefixes[0].block.keys for each in (found, expected)]
    assert torch.equal(*keys)


def test_an_adapter_with_tokens_of_its_own_is_refused(model):
    with pytest.raises(winnow.ModelError, match=r"prompt-learning .*before every input"):
        winnow.compress(Wrapper(model, is_prompt_learning=True), prompt(length=N), "full")
    with pytest.raises(winnow.ModelError, match=r"prompt-learning .*before every input"):
        winnow.CompressedCache(Wrapper(model, is_prompt_learning=True), "full")
    for other in (model, Wrapper(model, is_prompt_learning=False), Wrapper(model)):
        check_prompt_learning(other)


@pytest.mark.parametrize(
    "given", [[[1, 2]], {"input_ids": prompt()}, "full @ 9"], ids=lambda given: type(given).__name__
)
def test_tokens_that_are_no_tensor(model, given):
    with pytest.raises(winnow.CacheError, match=f"input_ids is a {type(given).__name__}; give a tensor"):
        winnow.compress(model, given, "full")


@pytest.mark.parametrize("name", ["cache", "past_key_values", "use_cache"])
def test_the_cache_is_not_among_the_inputs(model, name):
    with pytest.raises(winnow.CacheError, match=f"leave {name} out"):
        winnow.compress(model, prompt(), "full", **{name: None})
