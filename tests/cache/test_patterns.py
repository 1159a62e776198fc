"""Masks that models make for images: causal ones where a text has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.families import build_any, prompt
from winnow import CompressedCache

pytestmark = pytest.mark.usefixtures("one_thread")
N = 40
OPTIONS: dict[str, dict[str, Any]] = {
    "in chunks": {"prefill_chunk_size": 16},
    "with candidates": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_text_without_images_may_come_in_pieces(options: dict[str, Any]) -> None:
    model, ids = build_any("gemma3"), prompt(length=N // 2).repeat(1, 2)
    given = {"token_type_ids": torch.zeros_like(ids), "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **given)
    model.set_attn_implementation("winnow")
    found = model.generate(ids, past_key_values=CompressedCache(model, "full", prompt_length=N), **given, **options)
    assert torch.equal(found, expected)


@torch.no_grad()
def test_padded_texts_without_images_are_masked_as_others() -> None:
    model, ids, mask = build_any("gemma3"), prompt(rows=2, length=N), torch.ones(2, N, dtype=torch.int64)
    mask[1, :13] = 0
    model.set_attn_implementation("winnow")
    kept = []
    for types in ({}, {"token_type_ids": torch.zeros_like(ids)}):
        past = CompressedCache(model, "snapkv(window=3) @ 9")
        model(ids, attention_mask=mask, past_key_values=past, **types)
        kept.append([past.kept(layer, row) for layer in (1, 3) for row in (0, 1)])
    torch.testing.assert_close(*kept)
