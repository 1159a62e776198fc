"""Layers that share keys of earlier ones, and are asked with the queries alone whose logits are wanted (Gemma 4)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from support.families import build, prompt
from winnow import CompressedCache
from winnow.cache import attention

pytestmark = pytest.mark.usefixtures("one_thread")
N, TURN = 40, 4
GREEDY: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(params=[8, 64], ids=["window of 8", "of more than the prompt"])
def model(request) -> PreTrainedModel:
    made = build("gemma4_text", sliding_window=request.param)
    made.set_attn_implementation("winnow")
    return made


@torch.no_grad()
def stock(model: PreTrainedModel, ids: Tensor, **given: Any) -> Tensor:
    """Logits of all tokens, in one pass of transformers' own attention."""
    model.set_attn_implementation("sdpa")
    logits = model(ids, use_cache=False, **given).logits
    model.set_attn_implementation("winnow")
    return logits


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kept", [1, 3])
@torch.no_grad()
def test_the_last_logits_alone(model: PreTrainedModel, kept: int) -> None:
    ids = prompt(length=N)
    expected = stock(model, ids)[:, -kept:]
    for past in (CompressedCache(model, "full"), DynamicCache(config=model.config), None):
        assert_close(model(ids, past_key_values=past, logits_to_keep=kept).logits, expected)


@pytest.mark.parametrize("kept", [1, 3, 6])
@torch.no_grad()
def test_the_last_logits_of_tokens_behind_a_prompt(model: PreTrainedModel, kept: int) -> None:
    ids = prompt(length=N + TURN)
    expected = stock(model, ids)[:, -kept:]
    past = CompressedCache(model, "full", prompt_length=N)
    assert_close(model(ids, past_key_values=past, logits_to_keep=kept).logits, expected)
    past = CompressedCache(model, "full")
    model(ids[:, :N], past_key_values=past, logits_to_keep=kept)
    turn = model(ids[:, N:], past_key_values=past, logits_to_keep=kept).logits
    assert_close(turn, expected[:, -TURN:])


def test_prompt_lookup_finds_the_greedy_answer(model: PreTrainedModel) -> None:
    ids = prompt(length=12).repeat(1, 4)  # candidates come with the prompt
    expected = model.generate(ids, **GREEDY)
    for past in (None, CompressedCache(model, "full", prompt_length=48), CompressedCache(model, "full")):
        assert torch.equal(model.generate(ids, past_key_values=past, prompt_lookup_num_tokens=4, **GREEDY), expected)


@pytest.mark.parametrize("kept", [1, 2])
@torch.no_grad()
def test_padded_prompts_and_turns(model: PreTrainedModel, kept: int) -> None:
    ids, mask = prompt(rows=2, length=N + TURN), torch.ones(2, N + TURN, dtype=torch.int64)
    mask[1, :13] = mask[1, N : N + 2] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    expected = stock(model, ids, attention_mask=mask, position_ids=places)

    def taken(past: CompressedCache, first: int, end: int) -> Tensor:
        return model(
            ids[:, first:end],
            attention_mask=mask[:, :end],
            position_ids=places[:, first:end],
            past_key_values=past,
            logits_to_keep=kept,
        ).logits

    past = CompressedCache(model, "full")
    assert_close(taken(past, 0, N), expected[:, N - kept : N])
    assert_close(taken(past, N, N + TURN), expected[:, -kept:])
    # With the turn behind the prompt, in one pass.
    assert_close(taken(CompressedCache(model, "full", prompt_length=N), 0, N + TURN), expected[:, -kept:])


def test_padded_rows_are_compressed_as_if_alone(model: PreTrainedModel) -> None:
    ids, mask, method = prompt(rows=2, length=N), torch.ones(2, N, dtype=torch.int64), "snapkv(window=3) @ 9"
    mask[1, :13] = 0
    batch = model.generate(ids, attention_mask=mask, past_key_values=CompressedCache(model, method), **GREEDY)
    alone = model.generate(ids[1:, 13:], past_key_values=CompressedCache(model, method), **GREEDY)
    assert torch.equal(batch[1, N:], alone[0, N - 13 :])


@torch.no_grad()
def test_layers_bring_validity_to_the_host_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen, flat = build("gemma3n_text"), [], attention._flat
    model.set_attn_implementation("winnow")

    def noted(mask: Tensor) -> Tensor:
        seen.append(flat(mask))
        return seen[-1]

    monkeypatch.setattr(attention, "_flat", noted)
    mask = torch.ones(2, N, dtype=torch.int64)
    mask[1, :13] = 0
    model(prompt(rows=2, length=N), attention_mask=mask, past_key_values=CompressedCache(model, "full"))
    assert len(seen) > 1
    assert all(each is seen[0] for each in seen)
