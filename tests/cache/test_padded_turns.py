"""Turns that came with padding and are taken back: rows lose their own tokens of it, and no others."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from support.families import prompt
from support.small_caches import N, made
from winnow import CacheError, CompressedCache

pytestmark = pytest.mark.usefixtures("one_thread")
TURN = 6


@torch.no_grad()
def taken(model, cache, ids: Tensor, mask: Tensor, **given: Tensor) -> Tensor:
    """The logits [R, V] of the last of ids [R, Q]."""
    return model(ids, attention_mask=mask, past_key_values=cache, use_cache=True, **given).logits[:, -1]


def begun(model, *caches) -> Tensor:
    """Two rows with a prompt and five tokens in each cache; their mask."""
    mask = torch.ones(2, N, dtype=torch.int64)
    for cache in caches:
        taken(model, cache, prompt(2, N), mask)
        for step in range(5):
            taken(model, cache, prompt(2, 1, seed=step), torch.ones(2, N + step + 1, dtype=torch.int64))
    return torch.ones(2, N + 5, dtype=torch.int64)


def padded(mask: Tensor, left: bool) -> Tensor:
    """A mask with a turn behind it, half of which is padding in the second row."""
    turn = torch.ones(2, TURN, dtype=torch.int64)
    turn[1, : TURN // 2] = 0
    return torch.cat([mask, turn if left else turn.flip(1)], dim=1)


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("options", [{}, {"fold_every": 200}], ids=["", "may fold"])
@pytest.mark.parametrize("columns", [2, 4, TURN])
def test_a_row_loses_its_own_tokens_of_the_columns_taken_back(left: bool, options, columns: int) -> None:
    model = made()
    cache, stock = CompressedCache(model, "snapkv(window=4) @ 100%", **options), DynamicCache(config=model.config)
    mask = padded(begun(model, cache, stock), left)
    positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -TURN:]
    for each in (cache, stock):
        taken(model, each, prompt(2, TURN, seed=9), mask, position_ids=positions)
        each.crop(-columns)
    kept = mask[:, :-columns]
    counts = kept[:, N:].sum(dim=1).tolist()
    asking = [max(0, 4 - tokens) for tokens in mask[:, -columns:].sum(dim=1).tolist()]
    for layer in cache.compressed_layers():
        assert layer.tail.lengths.tolist() == counts
        assert layer.recent is None or [layer.recent.held(row) for row in range(2)] == asking
    after = torch.cat([kept, torch.ones(2, 1, dtype=torch.int64)], dim=1)
    position = kept.sum(dim=1, keepdim=True)
    found, expected = (
        taken(model, each, prompt(2, 1, seed=3), after, position_ids=position) for each in (cache, stock)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def test_a_turn_that_fails_and_comes_again_is_taken_back_once() -> None:
    model = made()
    cache = CompressedCache(model, "full")
    mask = padded(begun(model, cache), left=True)
    positions = (mask.cumsum(1) - 1)[:, -TURN:]
    hook = model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        taken(model, cache, prompt(2, TURN), mask, position_ids=positions)
    hook.remove()
    cache.take_back_unfinished()
    for step in range(TURN):
        taken(model, cache, prompt(2, 1, seed=step), torch.ones(2, N + 6 + step, dtype=torch.int64))
    cache.crop(-3)
    assert [layer.tail.lengths.tolist() for layer in cache.compressed_layers()] == [[8, 8]] * 3


def test_rows_take_their_padding_along() -> None:
    model = made()
    cache = CompressedCache(model, "full")
    mask = padded(begun(model, cache), left=True)
    taken(model, cache, prompt(2, TURN), mask, position_ids=(mask.cumsum(1) - 1)[:, -TURN:])
    cache.batch_select_indices(torch.tensor([1, 0, 1]))
    fork = copy.deepcopy(cache)
    fork.crop(-TURN)
    assert [layer.tail.lengths.tolist() for layer in fork.compressed_layers()] == [[5, 5, 5]] * 3
    assert [layer.tail.lengths.tolist() for layer in cache.compressed_layers()] == [[8, 11, 8]] * 3


def test_what_was_folded_is_not_taken_back() -> None:
    model = made()
    cache = CompressedCache(model, "snapkv(window=4) @ 9", fold_turns=10)
    mask = padded(begun(model, cache), left=True)
    taken(model, cache, prompt(2, TURN), mask, position_ids=(mask.cumsum(1) - 1)[:, -TURN:])
    with pytest.raises(CacheError, match="cannot crop 6 tokens: only the last 0 can"):
        cache.crop(-TURN)
