"""Contexts: any number of questions, the same answers from a file for every kind of layer, and what cannot be saved."""

from __future__ import annotations

import gc

import pytest
import torch

import winnow
from support.contexts import answer
from support.families import build_any, prompt
from support.small_caches import GREEDY, N, compress, made, method

PADDING = (0, 13, N)  # the last row is nothing but padding


def kept(context, rows: int = 1):
    layers = [i for i, layer in enumerate(context.cache().layers) if hasattr(layer, "prefixes")]
    return [[head.tolist() for head in context.kept(i, row)] for i in layers for row in range(rows)]


FAMILIES = {
    "grouped queries": ("llama", {}),
    "as many KV heads as queries": ("gpt2", {}),
    "soft-capping and sliding layers": ("gemma2", {}),
    "sinks": ("gpt_oss", {}),
    "shared layers": ("gemma3n_text", {}),
    "chunked layers": ("llama4_text", {}),
    "linear layers": ("qwen3_next", {}),
    "convolutions": ("lfm2", {}),
    "linear state and full attention in one layer": ("falcon_h1", {}),
}


@pytest.mark.parametrize("case", FAMILIES)
def test_a_file_answers_as_the_context_that_it_was_saved_from(case, tmp_path):
    family, overrides = FAMILIES[case]
    model = made(family, **overrides)
    context = compress(model)
    loaded = winnow.load_context(context.save(tmp_path / "c"), model)
    assert torch.equal(loaded.input_ids, context.input_ids)
    assert kept(loaded) == kept(context)
    assert loaded.stats() == context.stats()
    assert torch.equal(answer(model, loaded), answer(model, context))
    assert torch.equal(answer(model, loaded), answer(model, context)), "the second fork sees the first"


def test_a_padded_batch(model, tmp_path):
    ids, mask = prompt(rows=3, length=N), torch.ones(3, N, dtype=torch.int64)
    for row, padding in enumerate(PADDING):
        mask[row, :padding] = 0
    context = winnow.compress(model, ids, method(), attention_mask=mask)
    loaded = winnow.load_context(context.save(tmp_path / "c"), model)
    assert loaded.cache().compressed_layers()[0].prefixes[2] is None
    assert kept(loaded, rows=3) == kept(context, rows=3)
    assert loaded.stats() == context.stats()
    assert torch.equal(answer(model, loaded, mask), answer(model, context, mask))


def logits_behind(model, ids, mask, context):
    """[R, steps, V] logits of an answer, and its tokens."""
    question = torch.tensor([[5, 6, 7]]).expand(len(ids), -1)
    whole = torch.cat([mask, torch.ones_like(question)], dim=1)
    found = model.generate(
        torch.cat([ids, question], dim=1),
        attention_mask=whole,
        past_key_values=context.cache(),
        output_logits=True,
        return_dict_in_generate=True,
        **GREEDY,
        pad_token_id=0,
    )
    return torch.stack(found.logits, dim=1)


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3_next", "gemma3", "qwen2_5_vl"])
def test_a_padded_row_answers_as_it_does_alone(family, chunk, tmp_path):
    """Positions are those of `generate`, which does not count padding: learned ones (gpt2) show any other."""
    model = build_any(family)
    model.set_attn_implementation("winnow")
    short, padding = prompt(length=18, seed=5).clamp(max=90), 22
    ids = torch.cat([prompt(length=N).clamp(max=90), torch.nn.functional.pad(short, (padding, 0))])
    mask = torch.ones_like(ids)
    mask[1, :padding] = 0
    context = winnow.compress(model, ids, method(), attention_mask=mask, chunk_size=chunk)
    alone = winnow.compress(model, short, method(), chunk_size=chunk)
    expected = logits_behind(model, short, torch.ones_like(short), alone)
    torch.testing.assert_close(logits_behind(model, ids, mask, context)[1:], expected, atol=1e-4, rtol=1e-4)
    loaded = winnow.load_context(context.save(tmp_path / "c"), model)
    torch.testing.assert_close(logits_behind(model, ids, mask, loaded)[1:], expected, atol=1e-4, rtol=1e-4)


def test_positions_that_are_given_are_cut_with_their_chunks(model):
    ids = prompt(length=N)
    expected = winnow.compress(model, ids, "full", position_ids=torch.arange(N)[None] + 3)
    found = winnow.compress(model, ids, "full", position_ids=torch.arange(N)[None] + 3, chunk_size=7)
    plain = winnow.compress(model, ids, "full")
    keys = [each.cache().compressed_layers()[0].prefixes[0].block.keys for each in (expected, found, plain)]
    torch.testing.assert_close(keys[0], keys[1])
    assert (keys[0] - keys[2]).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_chunks(dtype, tmp_path):
    model = made().to(dtype)
    context = compress(model, chunk_size=7)
    loaded = winnow.load_context(context.save(tmp_path / "c"), model)
    assert loaded.cache().compressed_layers()[0].prefixes[0].block.keys.dtype == dtype
    assert torch.equal(answer(model, loaded), answer(model, context))


def test_rows_that_share_a_prefix_share_it_again(model, tmp_path):
    context = compress(model)
    context._cache.batch_repeat_interleave(3)
    context.input_ids = context.input_ids.repeat_interleave(3, dim=0)
    loaded = winnow.load_context(context.save(tmp_path / "c"), model)
    layer = loaded.cache().compressed_layers()[1]
    assert len(layer.prefixes) == 3
    assert len(layer.distinct_prefixes()) == 1
    assert loaded.stats() == context.stats()


def test_a_context_whose_model_is_gone_cannot_be_saved(tmp_path):
    model = made()
    context = compress(model)
    del model
    gc.collect()
    with pytest.raises(winnow.ContextError, match="the model of this context was deleted"):
        context.save(tmp_path / "c")


def test_a_cache_with_later_tokens_is_no_context(model, tmp_path):
    context = compress(model)
    with torch.no_grad():
        model(prompt(length=3), past_key_values=context._cache)
    with pytest.raises(winnow.ContextError, match="without any later tokens"):
        context.save(tmp_path / "c")


def test_a_context_serves_any_number_of_questions(model):
    ids = prompt(length=N)
    context = winnow.compress(model, ids, method())
    before = context.stats()
    outs = []
    for seed in (3, 4, 3):
        question = torch.cat([context.input_ids, prompt(length=6, seed=seed)], dim=1)
        outs.append(model.generate(question, past_key_values=context.cache(), **GREEDY))
    assert torch.equal(outs[0], outs[2])
    assert not torch.equal(outs[0][:, -10:], outs[1][:, -10:])
    assert context.stats() == before
    one, two = context.cache(), context.cache()
    assert one.compressed_layers()[1].prefixes[0] is two.compressed_layers()[1].prefixes[0]


def test_a_context_in_chunks_is_the_same(model):
    ids = prompt(length=N)
    a, b = winnow.compress(model, ids, method()), winnow.compress(model, ids, method(), chunk_size=7)
    for layer in range(3):
        assert [k.tolist() for k in a.kept(layer)] == [k.tolist() for k in b.kept(layer)]
