"""Long later turns, folded right after they were attended to, against an oracle that frees nothing."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import winnow
from support.families import build, prompt
from support.fold_oracle import Expected, Rule
from support.folding import PROMPT, RULES, check, distinct, folding, run, same
from support.ready import ready
from winnow import CacheError, MethodError
from winnow.cache.fold import check_foldable

pytestmark = pytest.mark.usefixtures("one_thread")

TURNS = {
    name: replace(RULES[name], every=None, turns=6)
    for name in ("snapkv", "adakv", "streamingllm", "tova", "knorm, uneven heads", "keydiff")
}
CONVERSATION = [PROMPT, 1, 1, 6, 1, 20, 1, 1, 1, 3, 2, 1, 9, 1]


@pytest.mark.parametrize("rule", TURNS.values(), ids=TURNS.keys())
def test_a_long_turn_is_attended_to_whole_and_then_folded(model, rule):
    cache = check(model, rule, distinct(sum(CONVERSATION)), CONVERSATION)
    assert all(sum(layer) == rule.budget * 2 for layer in cache.stats().slots)


def test_whichever_comes_first_must_leave_the_tokens_that_vote():
    method = winnow.method("kvec(window=4, wide_window=8) @ 24")
    check_foldable(method, 8, 16)
    for every, turns in ((4, 16), (16, 4), (0, 16)):
        with pytest.raises(MethodError):
            check_foldable(method, every, turns)
    with pytest.raises(MethodError, match="fold_every is 0"):
        check_foldable(winnow.method("adakv @ 24"), 0)


@pytest.mark.parametrize("name", ["adakv", "h2o", "tova", "kvec", "expectedattention"])
def test_turns_and_what_is_generated(model, name):
    rule = replace(RULES[name], every=9, turns=5)
    check(model, rule, distinct(sum(CONVERSATION)), CONVERSATION)


@given(
    st.sampled_from(["snapkv", "streamingllm", "knorm", "tova"]),
    st.lists(st.one_of(st.just(1), st.integers(2, 9)), min_size=2, max_size=9),
    st.integers(1, 12),
    st.integers(1, 8),
    st.one_of(st.none(), st.integers(1, 10)),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_small_turns(model, scorer, chunks, length, turns, every):
    rule = Rule(scorer, 6, every, 3 if scorer == "snapkv" else 0, turns=turns)
    check(model, rule, distinct(length + sum(chunks), seed=length), [length, *chunks])


@given(
    st.sampled_from(["adakv(window=4)", "snapkv(window=3)+bits(4)", "keydiff", "tova", "streamingllm"]),
    st.integers(1, 40),
    st.integers(1, 90),
    st.lists(st.one_of(st.just(1), st.just(1), st.integers(2, 120)), min_size=5, max_size=20),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_held_stays_within_the_stated_bound(model, name, turns, length, chunks):
    """The budget; and the dense tokens, which are R after a turn, with half as much room, or room for 64."""
    amount, token = 40_000, 3 * 2 * 2 * 16 * 4
    cache = winnow.CompressedCache(model, winnow.method(name, f"{amount}B"), fold_turns=turns)
    ids, at, singles = prompt(length=length + sum(chunks)), 0, 0
    for size in (length, *chunks):
        run(model, cache, ids[:, at : at + size], [size])
        at += size
        singles = singles + 1 if size == 1 and at > length else 0
        stats = cache.stats()
        plans = sum(layer._plan.nbytes() for layer in cache.compressed_layers() if layer._plan is not None)
        assert max(stats.tail_tokens) <= turns + singles
        assert stats.held_bytes - plans <= amount + token * max(64, 1.5 * (turns + singles))


def test_a_turn_is_dense_in_one_layer_at_a_time():
    """Looked at inside every layer, right after its attention: the model's own keys and values, and the cache's."""
    model, long = build("llama", num_hidden_layers=6), 300
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, winnow.method("snapkv", 20), fold_turns=50)
    run(model, cache, prompt(length=40), [40])
    held: list[int] = []

    def look(*_) -> None:
        dense = [each for each in gc.get_objects() if isinstance(each, Tensor) and each.shape[1:] == (2, long, 16)]
        held.append(len({each.untyped_storage().data_ptr() for each in dense}))

    hooks = [layer.self_attn.o_proj.register_forward_pre_hook(look) for layer in model.model.layers]
    run(model, cache, prompt(length=long), [long])
    for hook in hooks:
        hook.remove()
    assert len(held) == 6
    assert 2 <= max(held) <= 4
    assert cache.stats().tail_bytes + cache.stats().reserve_bytes == 0


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3n_text", "gpt_oss", "falcon_h1", "cohere2"])
@pytest.mark.parametrize("padded", [False, True])
def test_every_layer_attends_to_the_whole_turn(family, padded):
    """Layers that share keys, too: this pass's logits are those without folding."""
    model = build(family)
    model.set_attn_implementation("winnow")
    method, ids = winnow.method("adakv", 12, window=4), prompt(rows=2, length=60)
    mask = torch.ones(2, 60, dtype=torch.int64)
    mask[0, 40:45] = 0 if padded else 1
    positions = mask.cumsum(1) - 1
    caches = [winnow.CompressedCache(model, method, fold_turns=turns) for turns in (None, 17)]
    for start, stop in ((0, 40), (40, 60)):
        logits = []
        for cache in caches:
            with torch.no_grad():
                logits.append(
                    model(
                        ids[:, start:stop],
                        attention_mask=mask[:, :stop],
                        position_ids=positions[:, start:stop],
                        past_key_values=cache,
                    ).logits
                )
        torch.testing.assert_close(logits[1][1], logits[0][1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logits[1][0, 5:], logits[0][0, 5:], atol=1e-5, rtol=1e-5)
    assert caches[1].stats().tail_tokens == ([15, 0] if padded else [0, 0])


@pytest.mark.parametrize("chunks", [[60], [20, 20, 20], [59, 1]])
def test_a_share_is_one_of_all_tokens_so_far(model, chunks):
    cache = winnow.CompressedCache(model, winnow.method("adakv", "25%", window=4), fold_turns=15)
    run(model, cache, prompt(length=100), [40, *chunks])
    folded = 100 - cache.stats().tail_tokens[0]
    assert sum(map(sum, cache.stats().slots)) == 2 * 3 * folded // 4


def test_forks_and_contexts_fold_their_own_turns(model):
    rule = TURNS["adakv"]
    ids, questions = prompt(length=PROMPT), [prompt(length=12, seed=seed) for seed in (7, 8)]
    context = winnow.compress(model, ids, winnow.method(rule.name, rule.budget), chunk_size=8, fold_turns=rule.turns)
    for question in questions:
        cache = context.cache()
        fork = copy.deepcopy(cache)
        logits = run(model, cache, question, [11, 1])
        expected = Expected(model, rule, torch.cat([ids, question], dim=1)[0], [PROMPT, 11, 1])
        expected.logits = expected.logits[PROMPT:]
        same(cache, 0, logits[0], expected)
        assert fork.kept(0)[0].tolist() == context.kept(0)[0].tolist()
        assert torch.equal(run(model, fork, question, [11, 1]), logits)


def test_beams_return_to_a_conversation(model):
    rule = TURNS["adakv"]
    cache, ids = folding(model, rule), prompt(length=20)
    options = {"past_key_values": cache, "max_new_tokens": 5, "num_beams": 3, "do_sample": False}
    out = model.generate(ids, **options)
    cache.reorder_cache(torch.tensor([0, 0, 0]))
    out = model.generate(torch.cat([out, prompt(length=30, seed=4)], dim=1), **options)
    assert out.shape == (1, 60)
    assert max(cache.stats().tail_tokens) <= 6 + 5


@pytest.mark.parametrize("turns", [3, 12])
def test_assisted_decoding_folds_once_tokens_are_accepted(model, turns):
    """Candidates come several at a time, too; they are folded at the next step, when it is known which of them stay."""
    cache = folding(model, replace(TURNS["snapkv"], turns=turns))
    options = {"max_new_tokens": 40, "do_sample": False, "prompt_lookup_num_tokens": 3}
    out = model.generate(prompt(length=12).repeat(1, 3), past_key_values=cache, **options)
    assert out.shape[1] == 36 + 40
    assert sum(map(sum, cache.stats().slots)) == 14 * 2 * 3
    assert max(cache.stats().tail_tokens) <= turns + 1 + 3


def test_a_folded_turn_cannot_be_taken_back(model):
    cache = folding(model, TURNS["snapkv"])
    run(model, cache, prompt(length=PROMPT + 9), [PROMPT, 7, 2])
    cache.crop(-2)
    with pytest.raises(CacheError, match=r"only the last 0 can be removed"):
        cache.crop(-1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("full", "keeps every token.*leave fold_turns out"),
        ("kvec", "give fold_turns=32 or more"),
        ("duoattention", "rule of its own.*leave fold_turns out"),
        ("snapkv+kivi(4)", "in groups.*leave fold_turns out"),
        ("h2o", "give fold_every as well"),
    ],
)
def test_methods_that_cannot_fold_turns(model, name, reason):
    method = ready(name, 40, shape=(3, 2))
    with pytest.raises(MethodError, match=reason):
        winnow.CompressedCache(model, method, fold_turns=8)
    with pytest.raises(MethodError, match=reason):
        winnow.compress(model, prompt(length=20), method, fold_turns=8)


def test_other_misuse(model):
    ids, method = prompt(length=20), winnow.method("snapkv", 20)
    for number in (0, -1, 2.5, True):
        with pytest.raises(MethodError, match=r"fold_turns is .*whole number"):
            winnow.CompressedCache(model, method, fold_turns=number)
    with pytest.raises(CacheError, match="coalitions"):
        winnow.compress(model, ids, method, fold_turns=8).cache().coalitions(torch.ones(1, 3, 2).bool(), 4)
    with pytest.raises(CacheError, match="same fold_every, fold_turns"):
        winnow.CompressedCache.joined([winnow.compress(model, ids, method, fold_turns=n).cache() for n in (8, 9)])
