"""Long generations: the tail folded into the prefix, with eviction, against an oracle that frees nothing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache

import winnow
from support.families import VOCABULARY, build, prompt
from support.fold_oracle import Expected, Rule
from support.ready import BUDGETED, ready
from winnow import CacheError, MethodError
from winnow.allocate import Allocation, Plan, Uniform
from winnow.cache.fold import select_present
from winnow.cache.recent_queries import RecentQueries
from winnow.cache.tail import Tail
from winnow.composition.method import Method
from winnow.kernels import Block
from winnow.score.window import pool_tokens
from winnow.store import Dense
from winnow.view import Extra, LayerView

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT = 30
STEPS = [PROMPT] + [1] * 31
RULES = {
    "snapkv": Rule("snapkv", 14, 5, window=4),
    "snapkv, shorter than its window": Rule("snapkv", 14, 3, window=8),
    "snapkv, nothing but the window": Rule("snapkv", 6, 4, window=6),
    "snapkv, every token": Rule("snapkv", 12, 1, window=4),
    "adakv": Rule("snapkv", 14, 5, window=4, compete=True),
    "adakv, every token": Rule("snapkv", 10, 1, window=4, compete=True),
    "streamingllm": Rule("streamingllm", 12, 5),
    "tova": Rule("tova", 12, 5),
    "tova, every token": Rule("tova", 9, 1),
    "knorm": Rule("knorm", 12, 5),
    "knorm, uneven heads": Rule("knorm", 12, 5, compete=True),
    "h2o": Rule("h2o", 12, 5),
    "h2o, every token": Rule("h2o", 12, 1),
    "h2o, normalised": Rule("h2o(normalise=True)", 12, 5, compete=True),
    "keydiff": Rule("keydiff", 12, 5),
    "keydiff, uneven heads": Rule("keydiff", 12, 7, compete=True),
}


@pytest.fixture(scope="module")
def model():
    made = build("llama")
    made.generation_config.pad_token_id = 0
    made.set_attn_implementation("winnow")
    return made


def distinct(length: int, seed: int = 0) -> Tensor:
    """[1, N] tokens of which none occurs twice: keys of equal tokens have equal norms, but for rounding."""
    return torch.randperm(VOCABULARY - 1, generator=torch.Generator().manual_seed(seed))[None, :length] + 1


def folding(model, rule: Rule, **kwargs) -> winnow.CompressedCache:
    return winnow.CompressedCache(model, winnow.method(rule.name, rule.budget), fold_every=rule.every, **kwargs)


def run(model, cache, ids: Tensor, chunks: Sequence[int]) -> Tensor:
    """Logits [R, N, V] of ids [R, N], fed in chunks."""
    parts, start = [], 0
    with torch.no_grad():
        for size in chunks:
            parts.append(model(ids[:, start : start + size], past_key_values=cache, use_cache=True).logits)
            start += size
    return torch.cat(parts, dim=1)


def check(model, rule: Rule, ids: Tensor, chunks: Sequence[int]) -> winnow.CompressedCache:
    """One sequence ids [1, N] against the oracle: logits of every token, positions of every head."""
    cache = folding(model, rule)
    logits = run(model, cache, ids, chunks)
    same(cache, 0, logits[0], Expected(model, rule, ids[0], chunks))
    return cache


def same(cache, row: int, logits: Tensor, expected: Expected) -> None:
    torch.testing.assert_close(logits.double(), expected.logits, atol=1e-4, rtol=1e-4)
    for layer, kept in expected.kept.items():
        assert [head.tolist() for head in cache.kept(layer, row)] == kept
    assert cache.stats().tail_tokens[row] == len(expected.tail[0])


# --- against the oracle --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_every_token_is_as_if_evicted_ones_were_masked(model, rule):
    cache = check(model, rule, distinct(sum(STEPS)), STEPS)
    slots = cache.stats().slots
    assert all(sum(layer) == rule.budget * 2 for layer in slots)
    if rule.compete:
        assert any(len(set(layer)) > 1 for layer in slots)
    assert cache.stats().tokens_seen == sum(STEPS)


@pytest.mark.parametrize("rule", [RULES["adakv"], RULES["tova"], RULES["streamingllm"], RULES["h2o"]], ids=str)
def test_second_turns_of_several_tokens(model, rule):
    chunks = [20, 1, 1, 1, 9, 1, 1, 4, 1, 1, 1, 1, 1, 1, 30, 1, 1]
    check(model, rule, distinct(sum(chunks), seed=3), chunks)


@pytest.mark.parametrize(
    "rule", [RULES["snapkv"], RULES["adakv"], RULES["knorm"], RULES["tova"], RULES["h2o"]], ids=str
)
def test_short_prompts_grow_into_the_budget(model, rule):
    cache = check(model, rule, distinct(40, seed=5), [1] * 40)
    assert all(sum(layer) == rule.budget * 2 for layer in cache.stats().slots)


@given(
    st.sampled_from(["snapkv", "streamingllm", "tova", "knorm", "keydiff", "h2o"]),
    st.lists(st.integers(1, 6), min_size=2, max_size=9),
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(4, 9),
    st.booleans(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_small_shapes(model, scorer, chunks, length, every, window, budget, compete):
    # Ties between heads that score alike are broken by where a token lies in each, which lists do not know.
    compete = compete and scorer not in ("tova", "streamingllm")
    rule = Rule(scorer, max(budget, window), every, window if scorer == "snapkv" else 0, compete)
    check(model, rule, distinct(length + sum(chunks), seed=length), [length, *chunks])


@pytest.mark.parametrize("name", [*BUDGETED, "h2o+ada", "knorm+raba", "h2o+critical+ada", "adakv(rounding='paper')"])
def test_every_method_folds_or_says_why_not(model, name):
    method = ready(name, 20, shape=(3, 2))
    if method.scorer.extras & (Extra.COVERAGE | Extra.ROTATION):
        with pytest.raises(MethodError, match="leave fold_every out"):
            winnow.CompressedCache(model, method, fold_every=7)
        return
    cache = winnow.CompressedCache(model, method, fold_every=7)
    run(model, cache, prompt(length=130), [30] + [1] * 100)
    slots = cache.stats().slots
    assert sum(map(sum, slots)) == 20 * 2 * 3 or "paper" in name
    for layer in range(3):
        for head in cache.kept(layer):
            assert bool((head.diff() > 0).all())
            assert set(range(128 - method.scorer.window, 128)) <= set(head.tolist())
            assert int(head[-1]) < 128


# --- rows ----------------------------------------------------------------------------------------------------------


def padded(rows: list[Tensor], length: int) -> tuple[Tensor, Tensor]:
    """Rows [n] on the left of which there is padding, and the mask [R, length]."""
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    for into, row in zip(ids, rows, strict=True):
        into[length - len(row) :] = row
    return ids, torch.stack([torch.arange(length) >= length - len(row) for row in rows]).long()


@pytest.mark.parametrize("name", ["adakv", "snapkv, shorter than its window", "tova", "h2o"])
def test_rows_of_a_padded_batch_are_what_they_are_alone(model, name):
    rule, lengths, steps = RULES[name], [25, 3, 17], 18
    rows = [prompt(length=length + steps, seed=length)[0] for length in lengths]
    ids, mask = padded([row[:length] for row, length in zip(rows, lengths, strict=True)], max(lengths))
    cache = folding(model, rule)
    with torch.no_grad():
        model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), past_key_values=cache)
        parts = []
        for step in range(steps):
            mask = torch.cat([mask, mask.new_ones(3, 1)], dim=1)
            now = torch.stack([row[length + step] for row, length in zip(rows, lengths, strict=True)])[:, None]
            positions = mask.sum(1, keepdim=True) - 1
            parts.append(model(now, attention_mask=mask, position_ids=positions, past_key_values=cache).logits)
    logits = torch.cat(parts, dim=1)
    for row, length in enumerate(lengths):
        expected = Expected(model, rule, rows[row], [length] + [1] * steps)
        expected.logits = expected.logits[length:]
        same(cache, row, logits[row], expected)


@pytest.mark.parametrize("name", ["adakv", "h2o"])
def test_padded_chunks_fold_row_by_row(model, name):
    rule = RULES[name]
    rows = [prompt(length=60, seed=seed)[0] for seed in (1, 2)]
    cache, got = folding(model, rule), [[], []]
    # New tokens of both rows at every step; where they differ, the shorter chunk is padded on the left.
    plan = [(20, 20), (3, 1), (1, 1), (6, 2), (1, 1), (1, 1), (1, 1), (2, 5), (1, 1), (1, 1), (1, 1)]
    at, mask = [0, 0], torch.zeros(2, 0, dtype=torch.int64)
    with torch.no_grad():
        for sizes in plan:
            new, valid = padded([rows[r][at[r] : at[r] + sizes[r]] for r in range(2)], max(sizes))
            mask = torch.cat([mask, valid], dim=1)
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -max(sizes) :]
            logits = model(new, attention_mask=mask, position_ids=positions, past_key_values=cache).logits
            for r in range(2):
                got[r].append(logits[r, max(sizes) - sizes[r] :])
                at[r] += sizes[r]
    for r in range(2):
        same(cache, r, torch.cat(got[r]), Expected(model, rule, rows[r][: at[r]], [sizes[r] for sizes in plan]))


@pytest.mark.parametrize("name", ["snapkv, shorter than its window", "h2o"])
@pytest.mark.parametrize("before", [3, 5, 8])
def test_beams_carry_their_queries_along(model, name, before):
    rule = RULES[name]
    ids = torch.cat([prompt(length=PROMPT + 30, seed=seed) for seed in (1, 2)])
    cache = folding(model, rule)
    run(model, cache, ids[:, : PROMPT + before], [PROMPT] + [1] * before)
    order = torch.tensor([1, 0, 1])
    cache.reorder_cache(order)
    later = torch.cat([prompt(length=12, seed=seed) for seed in (7, 8, 9)])
    logits = run(model, cache, later, [1] * 12)
    for row, source in enumerate(order.tolist()):
        whole = torch.cat([ids[source, : PROMPT + before], later[row]])
        expected = Expected(model, rule, whole, [PROMPT] + [1] * (before + 12))
        expected.logits = expected.logits[PROMPT + before :]
        same(cache, row, logits[row], expected)


def test_beam_search_and_several_sequences_generate(model):
    cache = folding(model, RULES["adakv"])
    out = model.generate(
        prompt(length=20),
        past_key_values=cache,
        max_new_tokens=30,
        num_beams=3,
        num_return_sequences=2,
        do_sample=False,
    )
    assert out.shape == (2, 50)
    assert cache.stats().rows == 3
    assert max(cache.stats().tail_tokens) <= 5


def test_forks_share_the_prefix_until_one_of_them_folds(model):
    rule = RULES["adakv"]
    ids = prompt(length=60)
    cache = folding(model, rule)
    run(model, cache, ids[:, :34], [PROMPT] + [1] * 4)
    fork = copy.deepcopy(cache)
    assert fork.layers[0].prefixes[0] is cache.layers[0].prefixes[0]
    logits = run(model, fork, ids[:, 34:], [1] * 26)
    assert [head.tolist() for head in cache.kept(0)] != [head.tolist() for head in fork.kept(0)]
    assert torch.equal(run(model, cache, ids[:, 34:], [1] * 26), logits)
    expected = Expected(model, rule, ids[0], [PROMPT] + [1] * 30)
    expected.logits = expected.logits[34:]
    same(fork, 0, logits[0], expected)


def test_contexts_and_joined_caches_fold(model):
    rule = RULES["adakv"]
    ids = [prompt(length=PROMPT, seed=seed) for seed in (1, 2)]
    method = winnow.method(rule.name, rule.budget)
    contexts = [winnow.compress(model, each, method, chunk_size=8, fold_every=rule.every) for each in ids]
    later = torch.cat([prompt(length=14, seed=seed) for seed in (3, 4)])
    together = winnow.CompressedCache.joined([context.cache() for context in contexts])
    logits = run(model, together, later, [1] * 14)
    for row in range(2):
        torch.testing.assert_close(run(model, contexts[row].cache(), later[row : row + 1], [1] * 14)[0], logits[row])
        expected = Expected(model, rule, torch.cat([ids[row][0], later[row]]), [PROMPT] + [1] * 14)
        expected.logits = expected.logits[PROMPT:]
        same(together, row, logits[row], expected)


# --- nothing lost, nothing folded ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adakv", "streamingllm", "knorm, uneven heads"])
def test_a_long_interval_changes_nothing(model, name):
    ids, rule = prompt(length=sum(STEPS)), replace(RULES[name], every=10_000)
    plain = winnow.CompressedCache(model, winnow.method(rule.name, rule.budget))
    lazy = folding(model, rule)
    assert torch.equal(run(model, lazy, ids, STEPS), run(model, plain, ids, STEPS))
    assert [h.tolist() for h in lazy.kept(1)] == [h.tolist() for h in plain.kept(1)]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3n_text", "gpt_oss", "falcon_h1"])
@pytest.mark.parametrize("name", ["snapkv", "streamingllm", "h2o"])
def test_a_budget_for_all_tokens_loses_nothing(family, name):
    model = build(family)
    ids, chunks = prompt(length=40), [12, 1, 1, 5] + [1] * 21
    model.set_attn_implementation("eager")
    stock = run(model, DynamicCache(config=model.config), ids, chunks)
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, winnow.method(name, 64), fold_every=3)
    torch.testing.assert_close(run(model, cache, ids, chunks), stock, atol=2e-5, rtol=1e-4)
    full = [index for index, layer in enumerate(cache.layers) if hasattr(layer, "prefixes")]
    for head in cache.kept(full[0]):
        assert head.tolist() == list(range(40 - cache.stats().tail_tokens[0]))


# --- taking tokens back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adakv", "tova", "streamingllm", "h2o"])
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
    with pytest.raises(CacheError, match=r"only the 2 tokens after what is compressed.*fold_every"):
        cache.crop(-3)
    cache.crop(-2)
    assert cache.get_seq_length() == PROMPT + 5


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adakv", "streamingllm", "pyramidkv", "h2o"])
def test_held_bytes_are_flat(model, name):
    """600 tokens: after the first fold, never a byte more than at that fold's end."""
    cache = winnow.CompressedCache(model, winnow.method(name, 24), fold_every=32)
    ids = prompt(length=40 + 600)
    held = []
    run(model, cache, ids[:, :40], [40])
    for step in range(600):
        run(model, cache, ids[:, 40 + step : 41 + step], [1])
        held.append(cache.stats().held_bytes)
    assert len(set(held[33:])) == 1
    assert max(held) == held[-1]
    stats = cache.stats()
    assert sum(map(sum, stats.slots)) == 24 * 2 * 3
    assert cache.layers[0].tail.keys.shape[2] == 32
    assert stats.held_bytes < stats.full_bytes / 5


def test_decode_plans_change_at_folds_only(model):
    cache = folding(model, RULES["snapkv"])
    ids = prompt(length=PROMPT + 20)
    run(model, cache, ids[:, : PROMPT + 6], [PROMPT] + [1] * 6)
    plans, buffers = [], set()
    for step in range(14):
        run(model, cache, ids[:, PROMPT + 6 + step : PROMPT + 7 + step], [1])
        plans.append(cache.layers[0]._plan)
        buffers.add(cache.layers[0].tail.keys.data_ptr())
    assert len(set(map(id, plans))) == 3
    assert len(buffers) == 1


def test_room_that_a_long_chunk_took_is_given_back(model):
    cache = folding(model, RULES["snapkv"])
    run(model, cache, prompt(length=PROMPT + 101), [PROMPT, 100, 1])
    assert cache.layers[0].tail.keys.shape[2] == 5


@pytest.mark.parametrize("length", [1, 12, 60])
def test_a_share_of_the_prompt_stays_what_it_was(model, length):
    cache = winnow.CompressedCache(model, winnow.method("adakv", "25%"), fold_every=4)
    run(model, cache, prompt(length=length + 50), [length] + [1] * 50)
    slots = cache.stats().slots
    # The window is kept of the shortest prompts as well, as soon as there is one.
    assert {sum(layer) for layer in slots} == {2 * max(8, length // 4)}


def test_bytes_are_a_limit(model):
    budget = 24 * 2 * 3 * (2 * 16 * 4 + 4) + 3 * 3 * 8  # slots with positions, and where heads begin
    cache = winnow.CompressedCache(model, winnow.method("knorm", f"{budget}B"), fold_every=4)
    run(model, cache, prompt(length=60), [10] + [1] * 50)
    assert sum(map(sum, cache.stats().slots)) == 24 * 2 * 3


# --- parts ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 5), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 4))
def test_recent_queries_are_the_last_ones(count, chunks, first):
    every = [torch.randn(2, first + row, 3) for row in range(2)]
    recent = RecentQueries(every, count)
    for size in chunks:
        new = torch.randn(2, 2, size, 3)
        recent.add(new, None, size=count + size if size % 2 == 0 else 0)
        every = [torch.cat([row, add], dim=1) for row, add in zip(every, new, strict=True)]
    for row in range(2):
        held = recent.held(row)
        assert held >= min(count, every[row].shape[1]) or not count
        assert torch.equal(recent.row(row), every[row][:, every[row].shape[1] - held :])


def test_neighbours_are_pooled_across_absent_columns():
    scores = torch.tensor([[3.0, 1.0, 0.0, 0.0, 5.0, 2.0]])
    absent = torch.tensor([[False, False, True, True, False, False]])
    pooled = pool_tokens(scores, 3, "max", absent)
    assert pooled[~absent].tolist() == pool_tokens(scores[~absent][None], 3, "max")[0].tolist()


@dataclass(frozen=True)
class _All(winnow.score.Scorer):
    """Absent columns look best."""

    def __call__(self, view: LayerView) -> Tensor:
        return view.keys.abs().sum(-1).neg()


@pytest.mark.parametrize("total", [1, 6, 9, 10, 11, 40])
def test_absent_columns_never_stay_and_their_slots_go_to_other_heads(total):
    keys = torch.rand(2, 9, 4) + 1
    absent = torch.zeros(2, 9, dtype=torch.bool)
    absent[0, 1:8] = True
    view = LayerView(0, 1, torch.zeros(2, 0, 4), keys.masked_fill(absent[..., None], 0), keys, 1.0, absent=absent)
    method = Method("all", _All(), Uniform(), Dense(), winnow.budget.Budget.parse(5))
    counts = torch.tensor([2, 9])
    chosen, _ = select_present(method, view, counts, Allocation(Plan(total, (2,), 9, 0), (total,)))
    slots = chosen.offsets.diff()
    assert int(slots.sum()) == min(total, 11)
    assert bool((slots <= counts).all())
    assert set(chosen.positions[: int(slots[0])].tolist()) <= {0, 8}


@dataclass(frozen=True)
class _Noting(Dense):
    seen: list[tuple[Block | None, int]] = field(default_factory=list, compare=False)

    def pack(self, view, selection, window, like=None):
        self.seen.append((like, view.keys.shape[1]))
        return super().pack(view, selection, window, like)


def test_stores_see_what_they_packed_before(model):
    method = winnow.method("snapkv(window=4)", 10)
    noting = Method(method.name, method.scorer, method.allocator, _Noting(), method.budget)
    cache = winnow.CompressedCache(model, noting, fold_every=6)
    run(model, cache, prompt(length=43), [PROMPT] + [1] * 13)
    seen = noting.store.seen
    assert [like is None for like, _ in seen] == [True] * 3 + [False] * 6
    assert [length for _, length in seen[3:]] == [16] * 6
    assert seen[6][0] is not seen[3][0]


@pytest.mark.parametrize("store", ["bits(8)", "bits(2)", "spark(0.5)", "spark(0.8, values=0.5)+bits(4)", "think(0.5)"])
def test_packed_slots_stay_what_they_are(model, store):
    method = winnow.method(f"snapkv(window=4)+ada(floor=0.0)+{store}", 12)
    cache = winnow.CompressedCache(model, method, fold_every=6)
    ids = prompt(length=PROMPT + 13)
    run(model, cache, ids[:, : PROMPT + 6], [PROMPT] + [1] * 6)
    before = cache.layers[1].prefixes[0]
    run(model, cache, ids[:, PROMPT + 6 :], [1] * 7)
    after = cache.layers[1].prefixes[0]
    shared = 0
    for head, (old, new) in enumerate(zip(before.kept(), after.kept(), strict=True)):
        both = set(old.tolist()) & set(new.tolist())
        # The window may have been dense before.
        for position in sorted(each for each in both if each < before.length - 4):
            was = before.block.recover(before.block.starts[head] + (old == position).nonzero()[0])
            now = after.block.recover(after.block.starts[head] + (new == position).nonzero()[0])
            torch.testing.assert_close(was, now, atol=1e-6, rtol=1e-6)
            shared += 1
    assert shared


@pytest.mark.parametrize("store", ["bits(8)", "spark(0.5)+bits(4)", "think(0.5)"])
def test_packed_bytes_are_a_limit(model, store):
    method = winnow.method(f"adakv(window=4)+{store}", "12000B")
    cache = winnow.CompressedCache(model, method, fold_every=6)
    ids, sizes = prompt(length=120), []
    for stop in range(100, 120):
        run(model, cache, ids[:, :stop][:, cache.get_seq_length() :], [100] if stop == 100 else [1])
        sizes.append(sum(sum(layer.prefixes[0].bytes().values()) for layer in cache.layers))
    assert 0.97 * 12000 < min(sizes) <= max(sizes) <= 12000


def test_tails_with_a_limit_stop_growing():
    keys = torch.zeros(1, 1, 1, 2)
    tail = Tail(keys, keys, limit=100)
    for _ in range(100):
        tail.append(keys, keys)
    assert tail.keys.shape[2] == 100


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("full", "keeps every token"),
        ("expectedattention", "whole prompt"),
        ("kvec", "whole prompt"),
        ("duoattention", "rule of its own"),
        ("snapkv+kivi(4)", "packed again"),
        ("snapkv+spark-p", "packed again"),
        ("snapkv+spark(0.5, recovery=gaussian)", "packed again"),
    ],
)
def test_methods_that_cannot_fold(model, name, reason):
    method = ready(name, 40, shape=(3, 2))
    with pytest.raises(MethodError, match=rf"{reason}.*leave fold_every out"):
        winnow.CompressedCache(model, method, fold_every=8)


def test_other_misuse(model):
    method = winnow.method("snapkv", 20)
    with pytest.raises(MethodError, match="fold_every is 0"):
        winnow.CompressedCache(model, method, fold_every=0)
    ids = prompt(length=20)
    with pytest.raises(CacheError, match="coalitions"):
        winnow.compress(model, ids, method, fold_every=8).cache().coalitions(torch.ones(1, 3, 2).bool(), 4)
    with pytest.raises(CacheError, match="same fold_every"):
        winnow.CompressedCache.joined([winnow.compress(model, ids, method, fold_every=n).cache() for n in (8, 9)])
    waiting = winnow.CompressedCache(model, method, fold_every=8)
    waiting.activate_past_recording()
    run(model, waiting, ids, [20])
    with pytest.raises(MethodError, match="kvec"):
        waiting.compressed_by(winnow.method("kvec", 20))
