"""Padding on the right of a prompt: left out by compressed layers, counted by transformers' own sliding ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

import winnow
from support.families import build, prompt
from support.recovered_oracle import recovered_logits
from winnow import CompressedCache

pytestmark = pytest.mark.usefixtures("one_thread")

SLIDING = ["cohere2", "gemma2", "gemma3_text", "olmo3", "exaone4", "gpt_oss"]
N, NEW, LENGTHS = 40, 6, (40, 31, 22)
IDS = prompt(rows=len(LENGTHS), length=N + NEW)


def mask_of(left: bool) -> Tensor:
    """[R, N] of a batch of rows of several lengths."""
    mask = torch.ones_like(IDS)
    for row, length in enumerate(LENGTHS):
        mask[row, slice(0, N - length) if left else slice(length, N)] = 0
    return mask


def decoded(model, past, ids: Tensor, mask: Tensor) -> Tensor:
    """Logits [R, NEW, V] of the tokens behind the prompt, fed one by one."""
    positions, logits, prompt_length = (mask.cumsum(1) - 1).clamp(min=0), [], ids.shape[1] - NEW
    for start, stop in [(0, prompt_length), *((end - 1, end) for end in range(prompt_length + 1, ids.shape[1] + 1))]:
        part = slice(start, stop)
        with torch.no_grad():
            out = model(
                ids[:, part], attention_mask=mask[:, :stop], position_ids=positions[:, part], past_key_values=past
            )
        logits.append(out.logits)
    return torch.cat(logits[1:], dim=1)


def ours(model, mask: Tensor, name: str = "full", budget: int | None = None) -> tuple[Tensor, CompressedCache]:
    model.set_attn_implementation("winnow")
    past = CompressedCache(model, winnow.method(name, budget))
    return decoded(model, past, IDS, mask), past


def stock(model, ids: Tensor, mask: Tensor) -> Tensor:
    model.set_attn_implementation("eager")
    return decoded(model, DynamicCache(config=model.config), ids, mask)


def alone(model, mask: Tensor) -> Tensor:
    """Logits of every row without padding."""
    rows = [ids[valid.bool()][None] for ids, valid in zip(IDS, mask, strict=True)]
    return torch.cat([stock(model, row, torch.ones_like(row)) for row in rows])


@pytest.mark.parametrize("family", SLIDING)
def test_windows_count_padding_with_any_cache(family: str) -> None:
    model, mask = build(family), mask_of(left=False)
    padded = stock(model, IDS, mask)
    torch.testing.assert_close(ours(model, mask)[0], padded, atol=1e-5, rtol=1e-5)
    # transformers' own rows are not what they would be alone.
    assert (padded - alone(model, mask))[1:].abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "qwen3", *SLIDING])
def test_other_padding_changes_nothing(family: str) -> None:
    model = build(family)
    for left in (True, False) if family not in SLIDING else (True,):
        mask = mask_of(left)
        torch.testing.assert_close(ours(model, mask)[0], alone(model, mask), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("family", ["llama", *SLIDING])
def test_a_small_budget_evicts_as_the_oracle_masks(family: str, left: bool) -> None:
    model, mask = build(family), mask_of(left)
    found, past = ours(model, mask, "adakv(window=3)", 9)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    expected = recovered_logits(model, past, IDS, mask, positions, N)[:, N:]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
