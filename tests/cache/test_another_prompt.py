"""A second prompt in a cache that holds another one's text: refused where it can be recognized.

Not where a single token of it is left, which looks like any step of decoding.
"""

from __future__ import annotations

import pytest
import torch

import winnow
from support.families import build, prompt
from support.small_caches import GREEDY, N, cache, compress
from winnow import CacheError
from winnow.cache.another_prompt import check_positions, check_shown

pytestmark = pytest.mark.usefixtures("one_thread")

SEEN = N + 9


@pytest.mark.parametrize("length", [1, 5, 20, SEEN // 2, 30, N, SEEN - 1, SEEN])
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"do_sample": True}], ids=str)
def test_a_prompt_that_is_no_longer_than_what_was_seen_is_refused(model, length, options):
    past = cache(model)
    model.generate(prompt(length=N), past_key_values=past, **{**GREEDY, **options})
    assert past.get_seq_length() == SEEN
    with pytest.raises(CacheError, match=r"new.*Make a new CompressedCache for every prompt.*context\.cache"):
        model.generate(prompt(length=length, seed=5), past_key_values=past, **{**GREEDY, **options})
    assert past.get_seq_length() == SEEN


def test_new_tokens_begin_right_behind_those_that_were_seen():
    check_positions(torch.tensor([[10, 11]]), None, [10])
    with pytest.raises(CacheError, match="begin at position 9"):
        check_positions(torch.tensor([[9, 10]]), None, [10])


def test_positions_of_one_row_are_those_of_all_and_of_several_kinds_nobody_asks():
    check_positions(torch.tensor([[10, 11]]), None, [10, 9])
    with pytest.raises(CacheError, match="begin at position 9"):
        check_positions(torch.tensor([[9, 10]]), None, [9, 10])
    check_positions(torch.zeros(3, 1, 2, dtype=torch.int64), None, [10])


def test_a_mask_shows_all_that_every_row_holds():
    check_shown(torch.tensor([10]), [10, 9])
    with pytest.raises(CacheError, match=r"hides 1 of the 10 tokens that row 1 .*alone\(1\).*crop\(-1\)"):
        check_shown(torch.tensor([9]), [9, 10])


def test_padded_rows_count_without_their_padding(model):
    ids, mask = prompt(rows=2, length=N), torch.ones(2, N, dtype=torch.int64)
    mask[0, :12] = 0
    past = cache(model)
    out = model.generate(ids, attention_mask=mask, past_key_values=past, **GREEDY)
    with pytest.raises(CacheError, match="begin at position"):
        model.generate(prompt(rows=2, length=N), attention_mask=mask, past_key_values=past, **GREEDY)
    longer = torch.cat([out, prompt(rows=2, length=6, seed=3)], dim=1)
    mask = torch.cat([mask, torch.ones(2, 16, dtype=torch.int64)], dim=1)
    assert model.generate(longer, attention_mask=mask, past_key_values=past, **GREEDY).shape[1] == N + 26


@pytest.mark.parametrize("family", ["gemma2", "gemma3n_text", "gpt_oss", "falcon_h1"])
def test_other_layers(family):
    found = build(family)
    found.set_attn_implementation("winnow")
    found.generation_config.pad_token_id = 0
    past = cache(found)
    out = found.generate(prompt(length=N), past_key_values=past, **GREEDY)
    found.generate(torch.cat([out, prompt(length=5, seed=3)], dim=1), past_key_values=past, **GREEDY)
    with pytest.raises(CacheError, match="Make a new CompressedCache for every prompt"):
        found.generate(prompt(length=N, seed=5), past_key_values=past, **GREEDY)


def test_a_refused_prompt_leaves_the_cache_as_it_was(model):
    past, plain = cache(model), cache(model)
    out, _ = (model.generate(prompt(length=N), past_key_values=each, **GREEDY) for each in (past, plain))
    for length in (10, N):
        with pytest.raises(CacheError, match="new"):
            model.generate(prompt(length=length, seed=5), past_key_values=past, **GREEDY)
    more = torch.cat([out, prompt(length=7, seed=3)], dim=1)
    ours, theirs = (model.generate(more, past_key_values=each, **GREEDY) for each in (past, plain))
    assert torch.equal(ours, theirs)


def test_assisted_decoding_gives_a_cache_all_that_it_has_seen_again(model, context):
    ids = torch.cat([context.input_ids, prompt(length=5, seed=3)], dim=1)
    with pytest.raises(
        CacheError, match=r"position 0, .* Assisted decoding and use_cache=False cannot continue a cache"
    ):
        model.generate(ids, past_key_values=context.cache(), prompt_lookup_num_tokens=3, **GREEDY)


def test_conversations_and_forks_go_on(model, context):
    """Whole conversations, new tokens by hand with and without positions, tokens that were taken back, joined rows."""
    past, whole = context.cache(), context.input_ids
    for seed in (3, 4):
        whole = torch.cat([whole, prompt(length=9, seed=seed)], dim=1)
        whole = model.generate(whole, past_key_values=past, **GREEDY)
    past.crop(-4)
    held, step = past.get_seq_length(), prompt(length=4, seed=6)
    with torch.no_grad():
        model(step, past_key_values=past)
        past.crop(-4)
        model(step, position_ids=torch.arange(held, held + 4)[None], past_key_values=past)
        shorter = winnow.compress(model, prompt(length=17), context.method).cache()
        together = winnow.CompressedCache.joined([compress(model).cache(), shorter])
        positions = torch.stack([torch.arange(N, N + 3), torch.arange(17, 20)])
        model(prompt(rows=2, length=3), position_ids=positions, past_key_values=together)
        with pytest.raises(CacheError, match=f"begin at position 17, but the cache has seen {N} tokens"):
            again = winnow.CompressedCache.joined([compress(model).cache(), shorter])
            model(prompt(rows=2, length=3), position_ids=positions.flip(0), past_key_values=again)


def test_new_tokens_only_come_with_the_mask_of_the_whole_conversation(model):
    past, plain = cache(model), cache(model)
    out, _ = (model.generate(prompt(length=N), past_key_values=each, **GREEDY) for each in (past, plain))
    turn = prompt(length=5, seed=3)
    whole, new = torch.cat([out, turn], dim=1), torch.cat([out[:, -1:], turn], dim=1)
    with pytest.raises(
        CacheError, match=r"no token of the input is new.* only the new tokens, also pass .*attention_mask"
    ):
        model.generate(new, past_key_values=past, **GREEDY)
    found = model.generate(new, attention_mask=torch.ones_like(whole), past_key_values=past, **GREEDY)
    assert torch.equal(found[:, 6:], model.generate(whole, past_key_values=plain, **GREEDY)[:, whole.shape[1] :])
