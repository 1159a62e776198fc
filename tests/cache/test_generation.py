"""`generate()` in all its modes over a compressed cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch

import winnow
from support.families import VOCABULARY, build, prompt
from support.oracle import masked_logits, oracle_attention
from support.small_caches import GREEDY, N, cache, stepwise


@pytest.fixture(scope="module")
def assistant():
    return build("llama", seed=1, num_hidden_layers=1)


MODES = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 0.7, "top_k": 20},
    "beam search": {"num_beams": 3},
    "beam search, several returned": {"num_beams": 4, "num_return_sequences": 3},
    "beam sampling": {"num_beams": 3, "do_sample": True},
    "several sequences": {"do_sample": True, "num_return_sequences": 3},
    "classifier-free guidance": {"guidance_scale": 1.5},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("mode", MODES)
def test_with_room_for_everything_generate_gives_the_stock_tokens(model, mode):
    options = {**GREEDY, **MODES[mode]}
    ids = prompt(length=N)
    with oracle_attention(model):
        torch.manual_seed(7)
        expected = model.generate(ids, **options)
    torch.manual_seed(7)
    given = model.generate(ids, past_key_values=cache(model, budget=N), **options)
    assert torch.equal(given, expected)


def test_greedy_generate_equals_decoding_by_hand(model):
    ids = prompt(length=N)
    assert torch.equal(model.generate(ids, past_key_values=cache(model), **GREEDY), stepwise(model, ids))


def test_every_generated_token_is_the_masked_oracles(model):
    ids, past = prompt(length=N), cache(model)
    out = model.generate(ids, past_key_values=past, **GREEDY)
    expected = masked_logits(model, out, N, past.kept)[:, N - 1 : -1].argmax(-1)
    assert torch.equal(out[:, N:], expected)


def test_beam_search_scores_are_those_of_the_masked_oracle(model):
    ids, past = prompt(length=N), cache(model)
    out = model.generate(
        ids,
        past_key_values=past,
        num_beams=4,
        return_dict_in_generate=True,
        output_scores=True,
        length_penalty=0.0,
        **GREEDY,
    )
    logits = masked_logits(model, out.sequences, N, past.kept)[:, N - 1 : -1].log_softmax(-1)
    total = logits.gather(-1, out.sequences[:, N:, None]).sum()
    torch.testing.assert_close(out.sequences_scores[0], total, atol=1e-4, rtol=1e-4)


def test_beams_share_the_memory_of_their_prefix(model):
    past = cache(model)
    model.generate(prompt(length=N), past_key_values=past, num_beams=4, **GREEDY)
    assert len({id(p) for p in past.compressed_layers()[0].prefixes}) == 1
    assert [sum(s) for s in past.stats().slots] == [18] * 3


def test_assistant_and_prompt_lookup_agree_with_greedy(model, assistant):
    ids = prompt(length=N // 2).repeat(1, 2)
    greedy = model.generate(ids, past_key_values=cache(model), **GREEDY)
    looked_up = model.generate(ids, past_key_values=cache(model), prompt_lookup_num_tokens=4, **GREEDY)
    assisted = model.generate(ids, past_key_values=cache(model), assistant_model=assistant, **GREEDY)
    assert torch.equal(looked_up, greedy)
    assert torch.equal(assisted, greedy)


def test_assisted_decoding_compresses_at_the_true_end_of_the_prompt(model, assistant):
    ids, past, plain = prompt(length=N), cache(model), cache(model)
    model.generate(ids, past_key_values=past, assistant_model=assistant, **GREEDY)
    model.generate(ids, past_key_values=plain, **GREEDY)
    for layer in range(3):
        assert [k.tolist() for k in past.kept(layer)] == [k.tolist() for k in plain.kept(layer)]


@pytest.mark.parametrize("candidates", ["an assistant that is always right", "prompt lookup"])
@pytest.mark.parametrize("method", ["snapkv @ 25%", "h2o @ 25%"])
def test_candidates_are_no_part_of_a_prompt_whose_end_is_known(model, candidates, method):
    ids = prompt(length=N // 2).repeat(1, 2)
    right = {"assistant_model": deepcopy(model)} if "assistant" in candidates else {"prompt_lookup_num_tokens": 4}
    plain = winnow.CompressedCache(model, method)
    past = winnow.CompressedCache(model, method, prompt_length=N)
    greedy = model.generate(ids, past_key_values=plain, **GREEDY)
    assert torch.equal(model.generate(ids, past_key_values=past, **right, **GREEDY), greedy)
    for layer in range(3):
        assert [k.tolist() for k in past.kept(layer)] == [k.tolist() for k in plain.kept(layer)]


@pytest.mark.parametrize("family", ["llama", "gemma3n_text"])  # in the second layers share keys and values
@torch.no_grad()
def test_tokens_behind_a_prompt_attend_to_what_it_was_compressed_to(family):
    model = build(family)
    model.set_attn_implementation("winnow")
    ids, behind = prompt(length=N), 5
    past = winnow.CompressedCache(model, "snapkv @ 25%", prompt_length=N - behind)
    together = model(ids, past_key_values=past).logits[:, -behind:]
    apart = winnow.CompressedCache(model, "snapkv @ 25%")
    model(ids[:, :-behind], past_key_values=apart)
    torch.testing.assert_close(together, model(ids[:, -behind:], past_key_values=apart).logits)
    assert past.stats().slots == apart.stats().slots


def test_left_padded_rows_generate_as_if_alone(model):
    lengths = [N, 23, 5, 1]
    rows = [prompt(length=n, seed=n) for n in lengths]
    ids = torch.zeros(len(rows), N, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, N - row.shape[1] :], mask[i, N - row.shape[1] :] = row[0], 1
    past = cache(model)
    together = model.generate(ids, attention_mask=mask, past_key_values=past, **GREEDY)
    for i, row in enumerate(rows):
        alone = cache(model)
        expected = model.generate(row, past_key_values=alone, **GREEDY)
        assert torch.equal(together[i, N:], expected[0, row.shape[1] :])
        assert [k.tolist() for k in past.kept(1, row=i)] == [k.tolist() for k in alone.kept(1)]
    # Padding is never stored.
    assert past.stats().slots[0] == [sum(len(past.kept(0, row=r)[h]) for r in range(4)) for h in range(2)]


def test_multi_turn_with_the_whole_conversation_again(model):
    past = cache(model)
    first = model.generate(prompt(length=N), past_key_values=past, **GREEDY)
    second = torch.cat([first, prompt(length=7, seed=3)], dim=1)
    out = model.generate(second, past_key_values=past, **GREEDY)
    expected = masked_logits(model, out, N, past.kept)[:, second.shape[1] - 1 : -1].argmax(-1)
    assert torch.equal(out[:, second.shape[1] :], expected)


def test_multi_turn_with_new_tokens_only(model):
    new = prompt(length=7, seed=3)
    whole, short = cache(model), cache(model)
    first = model.generate(prompt(length=N), past_key_values=whole, **GREEDY)
    model.generate(prompt(length=N), past_key_values=short, **GREEDY)
    conversation = torch.cat([first, new], dim=1)
    with torch.no_grad():
        a = model(conversation[:, whole.get_seq_length() :], past_key_values=whole).logits
        # The last generated token was never fed, so it is new too.
        b = model(torch.cat([first[:, -1:], new], dim=1), past_key_values=short).logits
    assert torch.equal(a, b)
    expected = masked_logits(model, conversation, N, whole.kept)[:, -a.shape[1] :]
    torch.testing.assert_close(a, expected, atol=1e-5, rtol=1e-5)


def test_generate_with_prefill_chunk_size(model):
    ids = prompt(length=N)
    out = model.generate(ids, past_key_values=cache(model, prompt_length=N), prefill_chunk_size=11, **GREEDY)
    assert torch.equal(out, model.generate(ids, past_key_values=cache(model), **GREEDY))


def test_several_caches_and_threads_on_one_model(model):
    prompts = [prompt(length=20 + 3 * i, seed=i) for i in range(8)]

    def answer(ids):
        return model.generate(ids, past_key_values=cache(model), **GREEDY)

    alone = [answer(ids) for ids in prompts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(answer, prompts * 3))
    for i, out in enumerate(together):
        assert torch.equal(out, alone[i % len(prompts)])


def test_other_caches_are_untouched_by_the_attention_function(model):
    ids = prompt(rows=2, length=N)
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    ours = model.generate(ids, attention_mask=mask, **GREEDY)
    model.set_attn_implementation("sdpa")
    try:
        assert torch.equal(ours, model.generate(ids, attention_mask=mask, **GREEDY))
    finally:
        model.set_attn_implementation("winnow")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model = build("llama").to(dtype)
    model.set_attn_implementation("winnow")
    ids, past = prompt(length=N + 6), cache(model)
    with torch.no_grad():
        logits = [model(ids[:, :N], past_key_values=past).logits[:, -1:]]
        for i in range(N, N + 6):
            logits.append(model(ids[:, i : i + 1], past_key_values=past).logits)
    expected = masked_logits(model, ids, N, past.kept)[:, N - 1 :]
    limit = {torch.bfloat16: 0.05, torch.float16: 0.01}[dtype] * expected.float().abs().max()
    assert (torch.cat(logits, dim=1) - expected).float().abs().max() < limit
    assert past.stats().bytes["keys"] == 3 * 18 * 16 * 2


def test_soft_capping_and_sinks_in_padded_batches():
    for family in ("gemma2", "gpt_oss"):
        model = build(family)
        model.set_attn_implementation("winnow")
        ids = prompt(rows=2, length=N)
        mask = torch.ones_like(ids)
        mask[0, :13] = 0
        together = model.generate(ids, attention_mask=mask, past_key_values=cache(model), **GREEDY)
        alone = model.generate(ids[:1, 13:], past_key_values=cache(model), **GREEDY)
        assert torch.equal(together[0, N:], alone[0, N - 13 :])


def test_gemma3_images_in_the_prompt_see_each_other():
    from support.families import vision_models

    model = vision_models()["gemma3"]()
    model.set_attn_implementation("winnow")
    ids = prompt(length=N).clamp(max=VOCABULARY - 5)
    ids[0, 10:14] = 96
    inputs = {
        "input_ids": ids,
        "pixel_values": torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)),
        "token_type_ids": (ids == 96).long(),
    }
    with oracle_attention(model):
        expected = model.generate(**inputs, **GREEDY)
    assert torch.equal(model.generate(**inputs, past_key_values=cache(model, budget=N), **GREEDY), expected)
    small = model.generate(**inputs, past_key_values=cache(model), **GREEDY)
    assert small.shape == expected.shape
