"""Several tokens at a time, before and after compression, padded or not, of a prompt or after it."""

from __future__ import annotations

import pytest
import torch

import winnow
from support.families import prompt
from support.oracle import masked_logits
from support.small_caches import GREEDY, N, cache


@pytest.mark.parametrize("chunk", [2, 5, 17, 40])
def test_chunks_after_compression_are_causal(model, chunk):
    ids, past = prompt(length=N + 40), cache(model, prompt_length=N)
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


@pytest.mark.parametrize("name", ["snapkv(window=4) @ 9", "h2o @ 9", "expectedattention @ 12"])
@pytest.mark.parametrize("padding", [slice(0, 13), slice(27, N)], ids=["left", "right"])
def test_chunks_of_a_padded_prompt_keep_what_the_whole_one_keeps(model, padding, name):
    ids, mask = prompt(rows=2, length=N), torch.ones(2, N, dtype=torch.int64)
    mask[0, padding] = 0
    whole, parts = (winnow.compress(model, ids, name, attention_mask=mask, chunk_size=size) for size in (None, 7))
    for layer in range(3):
        for row in range(2):
            assert all(map(torch.equal, parts.kept(layer, row), whole.kept(layer, row)))


@pytest.mark.parametrize("name", ["snapkv(window=12) @ 14", "h2o @ 14"])
def test_rows_may_change_places_between_chunks(model, name):
    """As those of beams do, in generate()."""
    ids, order = prompt(rows=2, length=N), torch.tensor([1, 0])
    moved, alone = (winnow.CompressedCache(model, name, prompt_length=N) for _ in range(2))
    with torch.no_grad():
        model(ids[:, :32], past_key_values=moved)
        moved.reorder_cache(order)
        model(ids[order, 32:], past_key_values=moved)
        model(ids[order, :32], past_key_values=alone)
        model(ids[order, 32:], past_key_values=alone)
    for layer in range(3):
        for row in range(2):
            assert all(map(torch.equal, moved.kept(layer, row), alone.kept(layer, row)))


# --- chunks that generate() makes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
def test_a_prompt_that_generate_cuts_is_refused_with_the_remedies(model, options):
    past = cache(model)
    with pytest.raises(winnow.CacheError, match=r"prompt_length=input_ids\.shape\[1\].*chunk_size=.*fold_turns=R"):
        model.generate(prompt(length=N), past_key_values=past, prefill_chunk_size=9, **{**GREEDY, **options})
    assert past.get_seq_length() == 9


@pytest.mark.parametrize("size", [1, 9, 20, 39, N, 64])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=str)
def test_a_prompt_that_generate_cuts_is_compressed_whole_where_its_length_is_told(model, size, options):
    ids, whole, cut = prompt(length=N), cache(model), cache(model, prompt_length=N)
    expected = model.generate(ids, past_key_values=whole, **GREEDY, **options)
    given = model.generate(ids, past_key_values=cut, prefill_chunk_size=size, **GREEDY, **options)
    assert torch.equal(given, expected)
    assert [k.tolist() for k in cut.kept(1)] == [k.tolist() for k in whole.kept(1)]


@pytest.mark.parametrize("folding", [{"fold_turns": 4}, {"fold_every": 5}], ids=str)
def test_a_prompt_that_generate_cuts_is_compressed_by_chunks_where_turns_are(model, folding):
    past = cache(model, **folding)
    model.generate(prompt(length=N), past_key_values=past, prefill_chunk_size=10, **GREEDY)
    stats = past.stats()
    assert sum(map(sum, stats.slots)) == 9 * 2 * 3
    assert max(stats.tail_tokens) <= GREEDY["max_new_tokens"]


def test_questions_as_long_as_the_prompt_where_its_end_is_known(model, context):
    question = prompt(length=N, seed=5)
    waiting, told, assisted, decoded = (
        cache(model, defer=True),
        cache(model, prompt_length=N),
        cache(model),
        cache(model),
    )
    with torch.no_grad():
        model(prompt(length=N), past_key_values=waiting)
        chosen = [context.cache(), waiting.compressed_by(winnow.method("snapkv", 12)), told, assisted, decoded]
        assisted.activate_past_recording()
        for past in chosen[2:]:
            model(prompt(length=N), past_key_values=past)
        assisted.crop(0)
        model(prompt(length=1), past_key_values=decoded)
        for past in chosen:
            model(question, past_key_values=past)
            assert past.stats().tail_tokens == [past.get_seq_length() - N]


def test_a_loaded_context_knows_its_prompt(model, saved):
    past = winnow.load_context(saved, model).cache()
    with torch.no_grad():
        model(prompt(length=N, seed=5), past_key_values=past)
    assert past.get_seq_length() == 2 * N


def test_assisted_decoding_of_a_repeated_prompt_is_not_refused(model):
    """Candidates come after the prompt, and none of them is a part of it."""
    ids = prompt(length=4).repeat(1, 2)
    out = model.generate(ids, past_key_values=cache(model, budget=8), prompt_lookup_num_tokens=7, **GREEDY)
    assert out.shape[1] > 8


def test_a_refused_chunk_changes_nothing(model):
    past, plain = cache(model), cache(model)
    with torch.no_grad():
        for each in (past, plain):
            model(prompt(length=N), past_key_values=each)
        with pytest.raises(winnow.CacheError, match=f"pass prompt_length={N}"):
            model(prompt(length=N), past_key_values=past)
        step = prompt(length=3)
        assert torch.equal(model(step, past_key_values=past).logits, model(step, past_key_values=plain).logits)
