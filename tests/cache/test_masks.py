"""Masks as their makers write them: longer than what was seen, and with padding of several low values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from support.families import build, prompt
from support.small_caches import N, cache, made
from winnow import CacheError, CompressedCache

pytestmark = pytest.mark.usefixtures("one_thread")
TURN = 4
PADDED = 22
"""Tokens of the second row that are padding, where a prompt has some."""


@torch.no_grad()
def taken(model, past, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
    """The logits [R, V] of the last of ids [R, Q]."""
    return model(ids, attention_mask=mask, position_ids=positions, past_key_values=past).logits[:, -1]


def ours_and_stock(run) -> tuple[Tensor, Tensor]:
    """Results of a function of a model and a cache: a compressed one that keeps all, and transformers' own."""
    found = []
    for attention in ("winnow", "sdpa"):
        model = build("llama")
        model.set_attn_implementation(attention)
        past = CompressedCache(model, "full") if attention == "winnow" else DynamicCache(config=model.config)
        found.append(run(model, past))
    return found[0], found[1]


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_a_mask_of_the_whole_conversation(behind: int, left: bool) -> None:
    """behind: what the mask has for tokens that are not there yet."""
    mask = torch.full((2, N + 3 * TURN), behind)
    mask[:, : N + TURN] = 1
    mask[1, N : N + 2] = 0
    if not left:
        mask[:, N : N + TURN] = mask[:, N : N + TURN].flip(1)
    positions = (mask.cumsum(1) - 1)[:, N : N + TURN].clamp(min=0)

    def run(model, past) -> Tensor:
        taken(model, past, prompt(2, N), mask, torch.arange(N).expand(2, -1))
        turn = taken(model, past, prompt(2, TURN, seed=1), mask, positions)
        seen = torch.cat([mask[:, : N + TURN], torch.ones(2, 1, dtype=mask.dtype)], dim=1)
        token = taken(model, past, prompt(2, 1, seed=2), seen, positions.amax(1, keepdim=True) + 1)
        # Where padding comes last, nobody looks at what it gives.
        return torch.stack([turn, token]) if left else torch.stack([token, token])

    torch.testing.assert_close(*ours_and_stock(run), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("low", [torch.finfo(torch.float32).min, -torch.inf, -1e9, -65504.0, -1e4, False])
def test_padding_of_an_additive_mask_is_known_by_any_low_value(low: float) -> None:
    mask = torch.ones(2, N, dtype=torch.int64)
    mask[1, :PADDED] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    seen = torch.ones(N, N, dtype=torch.bool).tril() & mask.bool()[:, None, None]
    whole = seen if low is False else torch.zeros(seen.shape).masked_fill(~seen, low)

    def run(model, past) -> Tensor:
        taken(model, past, prompt(2, N), whole, positions)
        longer = torch.cat([mask, torch.ones(2, 1, dtype=torch.int64)], dim=1)
        if isinstance(past, CompressedCache):
            assert [len(head) for head in past.kept(0, row=1)] == [N - PADDED] * 2
        return taken(model, past, prompt(2, 1, seed=2), longer, positions[:, -1:] + 1)

    torch.testing.assert_close(*ours_and_stock(run), atol=1e-5, rtol=1e-5)


def test_a_mask_of_integers_is_refused_in_words() -> None:
    model = made()
    past = cache(model)
    whole = torch.ones(1, 1, N, N, dtype=torch.int64).tril()
    with torch.no_grad():
        with pytest.raises(CacheError, match=r"torch.int64 is neither boolean .* nor added to logits"):
            model(prompt(length=N), attention_mask=whole, past_key_values=past)
        ours = model(prompt(length=N), attention_mask=whole.bool(), past_key_values=past).logits
        expected = model(prompt(length=N), past_key_values=cache(model)).logits
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
