"""Images in the prompt of image-text models: the stock cache's logits with room for everything, and fewer slots."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

import winnow
from support.families import VOCABULARY, prompt, vision_models

LENGTH, IMAGE_TOKEN, PLACE = 40, VOCABULARY - 1, 6
NOISE = torch.Generator().manual_seed(0)
PATCHES = {
    "pixel_values": torch.randn(16, 3 * 2 * 8 * 8, generator=NOISE),
    "image_grid_thw": torch.tensor([[1, 4, 4]]),
}
PIXELS = {"pixel_values": torch.randn(1, 3, 16, 16, generator=NOISE)}
IMAGES = {
    "llava": (4, PIXELS),
    "gemma3": (4, PIXELS),
    "mistral3": (
        4,
        {"pixel_values": torch.randn(1, 3, 32, 32, generator=NOISE), "image_sizes": torch.tensor([[32, 32]])},
    ),
    "internvl": (1, PIXELS),
    "qwen2_5_vl": (4, PATCHES),
    "qwen3_vl": (4, PATCHES),
}
"""Tokens of an image, and the image as the family takes it."""


def logits(model, family, cache, image=True):
    """[3, V]: of a prompt with an image, and of two further tokens."""
    tokens, given = IMAGES[family]
    ids = prompt(length=LENGTH).clamp(max=VOCABULARY - 5)
    inputs = {}
    if image:
        ids[0, PLACE : PLACE + tokens] = IMAGE_TOKEN
        inputs = dict(given)
    if image and "image_grid_thw" in inputs:
        inputs["mm_token_type_ids"] = (ids == IMAGE_TOKEN).int()
    if hasattr(model.model, "rope_deltas"):
        # What an earlier prompt left behind.
        model.model.rope_deltas = None
    with torch.no_grad():
        found = [model(ids, past_key_values=cache, use_cache=True, **inputs).logits[0, -1]]
        for token in (7, 8):
            found.append(model(torch.tensor([[token]]), past_key_values=cache, use_cache=True).logits[0, -1])
    return torch.stack(found)


@pytest.mark.parametrize("family", vision_models())
def test_an_image_in_the_prompt(family):
    model = vision_models()[family]()
    stock = logits(model, family, DynamicCache(config=model.config.get_text_config(decoder=True)))
    model.set_attn_implementation("winnow")
    found = logits(model, family, winnow.CompressedCache(model, f"adakv @ {LENGTH}"))
    torch.testing.assert_close(found, stock, atol=1e-5, rtol=1e-5)
    without = logits(model, family, winnow.CompressedCache(model, "full"), image=False)
    assert (found - without).abs().max() > 1e-2
    few = winnow.CompressedCache(model, "adakv @ 9")
    changed = logits(model, family, few)
    torch.testing.assert_close(changed[0], stock[0], atol=1e-5, rtol=1e-5)
    assert (changed[1:] - stock[1:]).abs().max() > 1e-4
    assert all(sum(heads) == 9 * len(heads) for heads in few.stats().slots)


def answered(model, context):
    """[8, V] logits of an answer to a question behind a context."""
    ids = torch.cat([context.input_ids, prompt(length=4, seed=3).clamp(max=VOCABULARY - 5)], dim=1)
    found = model.generate(
        ids,
        past_key_values=context.cache(),
        max_new_tokens=8,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.stack(found.logits)


def image_context(model, family, grid):
    """A prompt with an image, compressed."""
    tokens, given = IMAGES[family]
    ids = prompt(length=LENGTH).clamp(max=VOCABULARY - 5)
    ids[0, PLACE : PLACE + tokens] = IMAGE_TOKEN
    inputs = {**given, "image_grid_thw": torch.tensor([grid]), "mm_token_type_ids": (ids == IMAGE_TOKEN).int()}
    return winnow.compress(model, ids, "full", **inputs)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_contexts_keep_the_positions_behind_their_images(family, tmp_path):
    model, other = (vision_models()[family]() for _ in range(2))
    for each in (model, other):
        each.set_attn_implementation("winnow")
    square = image_context(model, family, [1, 4, 4])
    expected = answered(model, square)
    path = square.save(tmp_path / "square")
    text = winnow.compress(model, prompt(length=LENGTH).clamp(max=VOCABULARY - 5), "full")
    said = answered(model, text)
    wide = image_context(model, family, [1, 2, 8])
    assert (answered(model, wide) - expected).abs().max() > 1e-3
    torch.testing.assert_close(answered(model, square), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(answered(model, text), said, atol=1e-6, rtol=0)
    loaded = winnow.load_context(path, other)
    torch.testing.assert_close(answered(other, loaded), expected, atol=1e-6, rtol=0)
    assert loaded.save(tmp_path / "again").read_bytes() == path.read_bytes()
