"""Several tokens at a time, before and after compression, padded or not."""

from __future__ import annotations

import pytest
import torch

import winnow
from support.families import prompt
from support.oracle import masked_logits
from support.small_caches import N, cache


@pytest.mark.parametrize("chunk", [2, 5, 17, 40])
def test_chunks_after_compression_are_causal(model, chunk):
    ids, past = prompt(length=N + 40), cache(model)
    with torch.no_grad():
        logits = [model(ids[:, :N], past_key_values=past).logits[:, -1:]]
        for start in range(N, N + 40, chunk):
            logits.append(model(ids[:, start : min(start + chunk, N + 40)], past_key_values=past).logits)
    expected = masked_logits(model, ids, N, past.kept)[:, N - 1 :]
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, atol=1e-5, rtol=1e-5)


def test_a_padded_second_turn(model):
    first = torch.cat([prompt(length=N, seed=s) for s in (1, 2)])
    mask = torch.ones(2, N + 6, dtype=torch.int64)
    mask[0, N : N + 4] = 0
    second = prompt(rows=2, length=6, seed=5)
    past = cache(model)
    with torch.no_grad():
        model(first, attention_mask=mask[:, :N], past_key_values=past)
        positions = (mask.cumsum(1) - 1)[:, N:]
        out = model(second, attention_mask=mask, position_ids=positions, past_key_values=past).logits
        follow = model(
            second[:, -1:],
            attention_mask=torch.cat([mask, mask[:, -1:]], 1),
            position_ids=positions[:, -1:] + 1,
            past_key_values=past,
        ).logits
    for row, new in ((0, 2), (1, 6)):
        whole = torch.cat([first[row], second[row, -new:], second[row, -1:]])[None]
        expected = masked_logits(model, whole, N, lambda i, row=row: past.kept(i, row=row))[0]
        torch.testing.assert_close(out[row, -1], expected[-2], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(follow[row, -1], expected[-1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 39, 64])
@pytest.mark.parametrize("name", ["adakv", "h2o", "tova"])
def test_chunked_prefill_with_a_known_length_keeps_the_same(model, chunk, name):
    ids = prompt(length=N)
    chosen = winnow.method(name, budget=12)
    at_once, in_parts = (
        winnow.CompressedCache(model, chosen),
        winnow.CompressedCache(model, chosen, prompt_length=N),
    )
    with torch.no_grad():
        a = model(ids, past_key_values=at_once).logits[:, -1]
        for start in range(0, N, chunk):
            b = model(ids[:, start : start + chunk], past_key_values=in_parts).logits[:, -1]
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    for layer in range(3):
        assert [k.tolist() for k in at_once.kept(layer)] == [k.tolist() for k in in_parts.kept(layer)]


def test_chunked_prefill_of_a_padded_batch(model):
    ids, mask = prompt(rows=2, length=N), torch.ones(2, N, dtype=torch.int64)
    mask[1, :15] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    at_once, in_parts = cache(model), cache(model, prompt_length=N)
    with torch.no_grad():
        a = model(ids, attention_mask=mask, position_ids=positions, past_key_values=at_once).logits[:, -1]
        for start in range(0, N, 9):
            part = slice(start, start + 9)
            b = model(
                ids[:, part],
                attention_mask=mask[:, : start + 9],
                position_ids=positions[:, part],
                past_key_values=in_parts,
            ).logits[:, -1]
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    for row in range(2):
        assert [k.tolist() for k in at_once.kept(2, row)] == [k.tolist() for k in in_parts.kept(2, row)]
