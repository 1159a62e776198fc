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
        with pytest.raises(CacheError, match=r"torch.int64 is not supported; make it boolean .* or floating-point"):
            model(prompt(length=N), attention_mask=whole, past_key_values=past)
        ours = model(prompt(length=N), attention_mask=whole.bool(), past_key_values=past).logits
        expected = model(prompt(length=N), past_key_values=cache(model)).logits
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("turn", [2, TURN])
@pytest.mark.parametrize("options", [{}, {"fold_every": 3}], ids=["", "folds"])
def test_a_mask_that_hides_what_is_held_is_refused(turn: int, options: dict[str, int]) -> None:
    """Once tokens are held no mask hides them; a padded prompt, and a padded turn, hold nothing that it hides."""
    model = made()
    past, plain = (CompressedCache(model, "snapkv(window=4) @ 12", **options) for _ in range(2))
    mask = torch.ones(2, N + 2 * TURN, dtype=torch.int64)
    mask[1, :PADDED] = mask[0, N : N + 2] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for each in (past, plain):
        taken(model, each, prompt(2, N), mask, positions[:, :N])
        taken(model, each, prompt(2, TURN, seed=1), mask, positions[:, N : N + TURN])
    later = slice(N + TURN, N + TURN + turn)
    hiding = mask.clone()
    hiding[1, [N - 1, N + 3]] = 0
    with pytest.raises(CacheError, match=rf"hides 2 of the {N - PADDED + TURN} tokens that row 1 .*\.crop\(-2\)"):
        taken(model, past, prompt(2, turn, seed=2), hiding, positions[:, later])
    found, expected = (taken(model, each, prompt(2, turn, seed=2), mask, positions[:, later]) for each in (past, plain))
    assert torch.equal(found, expected)


def test_pads_behind_a_row_that_ended_early() -> None:
    """generate() gives them to the cache; the next turn hides them, and the row goes on without them as alone."""
    model, greedy = made(), {"do_sample": False, "pad_token_id": 0}
    ids, question = prompt(2, N), prompt(2, 5, seed=1)
    said = model.generate(ids, max_new_tokens=9, **greedy)[:, N:].tolist()
    end = next(token for token in said[0] if token not in said[1])
    past = CompressedCache(model, "full")
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), past_key_values=past, max_new_tokens=9, eos_token_id=end, **greedy
    )
    pads = int((out[0] == 0).sum())
    assert pads > 1
    longer = torch.cat([out, question], dim=1)
    with pytest.raises(CacheError, match=rf"hides {pads - 1} of .* row 0 .*own\.crop\(-{pads - 1}\)"):
        model.generate(longer, attention_mask=(longer != 0).long(), past_key_values=past, max_new_tokens=4, **greedy)
    own = past.alone(0)
    own.crop(1 - pads)
    text = torch.cat([out[:1, :-pads], question[:1]], dim=1)
    found, expected = (
        model.generate(text, past_key_values=each, max_new_tokens=4, **greedy)
        for each in (own, CompressedCache(model, "full"))
    )
    assert torch.equal(found, expected)


def test_pads_that_were_folded_cannot_be_cropped() -> None:
    """The error then names what is left to do."""
    model, greedy = made(), {"do_sample": False, "pad_token_id": 0, "min_new_tokens": 9, "max_new_tokens": 9}
    past = CompressedCache(model, "streamingllm @ 12", fold_every=2)
    out = model.generate(prompt(2, N), past_key_values=past, **greedy)
    shown = torch.ones(2, out.shape[1] + 5, dtype=torch.int64)
    shown[0, N + 2 : out.shape[1] - 1] = 0
    longer = torch.cat([out, prompt(2, 5, seed=1)], dim=1)
    with pytest.raises(CacheError, match=r"own\.crop\(-6\)\. Or give every row its own cache, as you must .* folded"):
        model.generate(longer, attention_mask=shown, past_key_values=past, **greedy)
    with pytest.raises(CacheError, match="crop"):
        past.alone(0).crop(-6)
