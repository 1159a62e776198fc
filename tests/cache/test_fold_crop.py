"""Decoding compression with tokens that are taken back."""

from __future__ import annotations

import pytest
import torch

from support.families import prompt
from support.fold_oracle import Expected
from support.folding import PROMPT, RULES, folding, run, same
from winnow import CacheError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ["adakv", "tova", "streamingllm", "h2o", "kvec", "triattention"])
def test_tokens_that_are_taken_back_never_were(model, name):
    rule = RULES[name]
    ids = prompt(length=PROMPT + 40)
    wrong = prompt(length=4, seed=9)
    tried, plain = folding(model, rule), folding(model, rule)
    for cache in (tried, plain):
        cache.activate_past_recording()
        run(model, cache, ids[:, :PROMPT], [PROMPT])
        cache.crop(0)
    got, wanted, at = [], [], PROMPT
    for taken in (2, 3, 1, 4, 2, 2, 3, 1, 1, 5, 2):
        now = ids[:, at : at + taken]
        wanted.append(run(model, plain, now, [taken]))
        got.append(run(model, tried, torch.cat([now, wrong], dim=1), [taken + 4])[:, :taken])
        tried.crop(-4)
        at += taken
    torch.testing.assert_close(torch.cat(got, dim=1), torch.cat(wanted, dim=1), atol=1e-5, rtol=1e-4)
    assert [h.tolist() for h in tried.kept(0)] == [h.tolist() for h in plain.kept(0)]
    assert tried.stats().tail_tokens == plain.stats().tail_tokens


def test_prompt_lookup_stays_within_the_budget(model):
    cache = folding(model, RULES["adakv"])
    model.generate(
        prompt(length=20), past_key_values=cache, max_new_tokens=60, prompt_lookup_num_tokens=3, do_sample=False
    )
    assert all(sum(layer) == 28 for layer in cache.stats().slots)
    assert max(cache.stats().tail_tokens) < 5 + 4


def test_a_fold_waits_for_queries_that_were_taken_back(model):
    ids, rule = prompt(length=50), RULES["snapkv"]
    cache = folding(model, rule)
    run(model, cache, ids[:, : PROMPT + 6], [PROMPT] + [1] * 6)
    run(model, cache, ids[:, :3], [3])
    cache.crop(-3)
    assert cache.stats().tail_tokens == [1]
    run(model, cache, ids[:, PROMPT + 6 :], [1] * 14)
    expected = Expected(model, rule, ids[0], [PROMPT] + [1] * 20)
    same(cache, 0, expected.logits.float(), expected)


def test_folded_tokens_cannot_be_taken_back(model):
    cache = folding(model, RULES["streamingllm"])
    run(model, cache, prompt(length=PROMPT + 7), [PROMPT] + [1] * 7)
    with pytest.raises(CacheError, match=r"only the last 2 can be removed.*folded since"):
        cache.crop(-3)
    cache.crop(-2)
    assert cache.get_seq_length() == PROMPT + 5
