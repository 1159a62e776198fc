"""Layers that share a pool of slots: kept sets equal those of all scores at once, in the memory of these slots."""

from __future__ import annotations

import copy
import gc
import itertools
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import winnow
from support.alive import alive
from support.families import build, prompt
from support.oracle import masked_logits
from support.turns import each_value
from winnow.allocate import Allocation, SlotPlan, spanning_of
from winnow.cache import spanning
from winnow.cache.prefix import Prefix
from winnow.cache.spanning import LayersTogether
from winnow.composition.method import Method
from winnow.errors import BudgetError, CacheError, MethodError
from winnow.evaluate.shared import DenseReader
from winnow.score import Scorer
from winnow.score.attention_sums import window_attention
from winnow.select import Selection, select
from winnow.view import LayerView

N, LAYERS, HEADS = 60, 4, 2
SLOT = 2 * 16 * 4
"""Bytes of a slot's key and value."""
ANY = [
    "snapkv+global",
    "adakv+global",
    "h2o+global",
    "criticalkv+global",
    "knorm+global",
    "streamingllm+global",
    "snapkv+cake(rows=8)",
    "adakv+cake(rows=8)",
    "critical-adakv+cake(rows=8)",
    "h2o+ada+zigzag(rows=8)",
    "snapkv+zigzag(rows=4)",
]
STORES = ["", "+bits(4, round=queries, dense_first=1)", "+bits(4)", "+spark", "+think", "+kivi(4)", "+spark+bits(8)"]


@pytest.fixture(scope="module")
def model():
    made = build("llama", num_hidden_layers=LAYERS)
    made.set_attn_implementation("winnow")
    return made


@dataclass(frozen=True)
class Coarse(Scorer):
    """Scores that are nearly all equal."""

    def __call__(self, view: LayerView) -> Tensor:
        return (view.keys.float().norm(dim=-1) > view.keys.float().norm(dim=-1).mean()).float()


class Watching:
    """Keeps whole layers, and what became of them."""

    queries = 1 << 20

    def __init__(self) -> None:
        self.seen: list[tuple[LayerView, Prefix]] = []

    def see(self, view: LayerView, prefix: Prefix) -> None:
        copied = view._replace(keys=view.keys.clone(), values=view.values.clone(), queries=view.queries.clone())
        self.seen.append((copied, prefix))


def fill(model: Any, cache: winnow.CompressedCache, ids: Tensor, **inputs: Any) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(ids, past_key_values=cache, **inputs).logits
    return logits


def bytes_of(context: winnow.Context) -> int:
    layers = context.cache().compressed_layers()
    return sum(sum(prefix.bytes().values()) for layer in layers for prefix in layer.distinct_prefixes())


def all_at_once(method: Method, views: list[LayerView]) -> list[list[list[int]]]:
    """Kept positions of every layer and head, from the scores of all layers together."""
    allocator = spanning_of(method.allocator)
    assert allocator is not None
    length = views[0].keys.shape[1]
    heads = tuple(len(view.keys) for view in views)
    guaranteed = min(method.scorer.guaranteed, length)
    plan = SlotPlan(method.budget.slots(length, heads, guaranteed), heads, length, guaranteed)
    rankings = [method.scorer.rank(view) for view in views]
    rows = allocator.attention_rows
    claims = [
        allocator.claim(ranking.scores, window_attention(view, rows) if rows else None, plan)
        for ranking, view in zip(rankings, views, strict=True)
    ]
    allocation = Allocation(plan, tuple(allocator.totals(claims, plan)))
    kept = []
    for layer, (ranking, view) in enumerate(zip(rankings, views, strict=True)):
        slots = method.allocator.head_slots(ranking.scores, allocation, layer)
        chosen = select(method.scorer.refine(ranking, slots, view), slots, layer)
        bounds = chosen.offsets.tolist()
        kept.append([chosen.positions[a:b].tolist() for a, b in itertools.pairwise(bounds)])
    return kept


def global_by_brute_force(scores: list[Tensor], total: int) -> list[list[list[int]]]:
    """Kept positions of every layer and head: the best of all, then lower tokens, heads and layers first."""
    entries = sorted(
        (-float(one[head, token]), token, head, layer)
        for layer, one in enumerate(scores)
        for head in range(one.shape[0])
        for token in range(one.shape[1])
    )[:total]
    kept: list[list[list[int]]] = [[[] for _ in one] for one in scores]
    for _, token, head, layer in entries:
        kept[layer][head].append(token)
    return [[sorted(tokens) for tokens in layer] for layer in kept]


def kept_of(cache: Any, row: int = 0) -> list[list[list[int]]]:
    return [[positions.tolist() for positions in cache.kept(layer, row)] for layer in range(LAYERS)]


@pytest.mark.parametrize(("name", "budget"), each_value(ANY, [9, 16, 31, "100%"]))
def test_kept_sets_are_those_of_all_scores_at_once(model, name, budget):
    budget = max(budget, 16) if "zigzag" in name and isinstance(budget, int) else budget
    method, watching = winnow.method(name, budget), Watching()
    context = winnow.compress(model, prompt(length=N), method, observer=watching)
    views = [view for view, _ in watching.seen]
    assert [view.layer for view in views] == list(range(LAYERS))
    assert kept_of(context) == all_at_once(method, views)
    assert kept_of(winnow.compress(model, prompt(length=N), method)) == kept_of(context)
    total = method.budget.slots(N, (HEADS,) * LAYERS, 8)
    assert sum(map(sum, context.stats().slots)) == total


@pytest.mark.parametrize("budget", [9, 14, 17])
def test_a_head_that_rounding_favors_in_the_end_finds_its_slot(budget):
    """RABA may round one head of several up as their layer gets fewer slots."""
    model = build("llama", num_hidden_layers=LAYERS, num_key_value_heads=4)
    model.set_attn_implementation("winnow")
    method, watching = winnow.method("snapkv(window=2)+raba+cake(rows=8)", budget), Watching()
    context = winnow.compress(model, prompt(length=N, seed=11), method, observer=watching)
    assert kept_of(context) == all_at_once(method, [view for view, _ in watching.seen])


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(1, 40),
    st.integers(8, 45),
    st.sampled_from([winnow.method("snapkv", budget=8).scorer, winnow.method("knorm", budget=8).scorer, Coarse()]),
    st.integers(0, 3),
)
def test_the_pool_keeps_the_best_of_all_layers(model, length, budget, scorer, seed):
    watching = Watching()
    method = winnow.method(scorer, budget, allocator=winnow.method("snapkv+global", 8).allocator)
    context = winnow.compress(model, prompt(length=length, seed=seed), method, observer=watching)
    scores = [scorer(view) for view, _ in watching.seen]
    assert kept_of(context) == global_by_brute_force(scores, min(budget, length) * HEADS * LAYERS)


@pytest.mark.parametrize(
    ("name", "store"), each_value(["snapkv+global", "adakv+cake(rows=8)", "h2o+zigzag(rows=8)"], STORES)
)
def test_stores_hold_what_they_would_if_slots_were_known_at_once(model, name, store):
    method, watching = winnow.method(name + store, 40), Watching()
    context = winnow.compress(model, prompt(length=N), method, observer=watching)
    for view, prefix in watching.seen:
        positions = prefix.positions.long()
        plain = method.store.pack(view, Selection(positions, prefix.block.offsets), min(method.scorer.window, N))
        slots = torch.arange(len(positions))
        for mine, theirs in zip(prefix.block.recover(slots), plain.recover(slots), strict=True):
            assert torch.equal(mine, theirs)
        assert prefix.block.bytes() == plain.bytes()
    assert bytes_of(context) == sum(sum(prefix.bytes().values()) for _, prefix in watching.seen)


@pytest.mark.parametrize("name", ["snapkv+global", "adakv+cake(rows=8)", "criticalkv+zigzag(rows=8)"])
@pytest.mark.parametrize("chunk", [None, 7])
def test_padded_rows_are_as_if_alone_and_decode_as_dense_attention(model, name, chunk):
    lengths, steps = [N, 23, 5, 1], 3
    method = winnow.method(name, "30%")
    rows = [prompt(length=n + steps, seed=n) for n in lengths]
    ids = torch.zeros(len(rows), N + steps, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, N + steps - row.shape[1] :], mask[i, N + steps - row.shape[1] :] = row[0], 1
    places = (mask.cumsum(1) - 1).clamp(min=0)
    cache = winnow.CompressedCache(model, method, prompt_length=N)
    starts = [*range(0, N, chunk or N), *range(N, N + steps)]
    logits = []
    for start, stop in zip(starts, [*starts[1:], N + steps], strict=True):
        part = {"attention_mask": mask[:, :stop], "position_ids": places[:, start:stop]}
        logits.append(fill(model, cache, ids[:, start:stop], **part)[:, -1:])
    last = torch.cat(logits[-steps:], dim=1)
    for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
        assert kept_of(cache, i) == kept_of(winnow.compress(model, row[:, :n], method))
        expected = masked_logits(model, row, n, lambda layer, i=i: cache.kept(layer, row=i))[0, n:]
        torch.testing.assert_close(last[i], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["snapkv+global", "snapkv+cake(rows=8)"])
def test_a_row_of_padding_alone_keeps_nothing(model, name):
    ids = torch.cat([prompt(length=20), prompt(length=20, seed=1)])
    mask = torch.ones_like(ids)
    mask[0] = 0
    context = winnow.compress(model, ids, winnow.method(name, "50%"), attention_mask=mask)
    assert kept_of(context, 0) == [[[]] * HEADS] * LAYERS
    assert kept_of(context, 1) == kept_of(winnow.compress(model, ids[1:], winnow.method(name, "50%")))


@pytest.mark.parametrize("name", ["snapkv+global", "adakv+cake(rows=8)"])
@pytest.mark.parametrize("store", ["", "+bits(4)", "+kivi(2)", "+spark"])
@pytest.mark.parametrize("budget", [10_000, 16_000, 24_000])
def test_a_budget_in_bytes_is_never_exceeded(model, name, store, budget):
    held = bytes_of(winnow.compress(model, prompt(length=N), winnow.method(name + store, f"{budget}B")))
    assert held <= budget
    slot = 2 * 16 * 4 + 4
    if not store:
        assert held > min(budget, HEADS * LAYERS * N * slot) - slot


def test_a_budget_in_bytes_that_cannot_hold_the_window_is_refused(model):
    with pytest.raises(BudgetError, match="use at least"):
        winnow.compress(model, prompt(length=N), winnow.method("snapkv+global", "1kB"))
    with pytest.raises(BudgetError):
        winnow.compress(model, prompt(length=N), winnow.method("snapkv+global+kivi(2)", "7kB"))


@pytest.mark.parametrize("name", ["snapkv+global", "knorm+global", "snapkv+cake(rows=8)", "adakv+zigzag"])
def test_no_more_than_the_slots_of_the_budget_are_held(model, name, monkeypatch):
    budget, held, add = 20, [], LayersTogether.add

    def watched(self, *args, **kwargs):
        add(self, *args, **kwargs)
        held.append(self.nbytes())

    monkeypatch.setattr(LayersTogether, "add", watched)
    cache = winnow.CompressedCache(model, winnow.method(name, budget))
    fill(model, cache, prompt(length=N))
    rounded = {"snapkv+cake(rows=8)": LAYERS, "adakv+zigzag": LAYERS * (HEADS + 1)}.get(name, 0)
    assert len(held) == LAYERS
    assert max(held) <= (budget * HEADS * LAYERS + rounded) * SLOT
    assert not cache.compression.together.nbytes()
    assert not cache.compression.together._places


@pytest.mark.parametrize("name", ["snapkv+global", "adakv+cake(rows=8)"])
def test_no_more_than_one_layer_is_there_twice(model, name, monkeypatch):
    earlier, alive_before, narrowed = [], [], spanning._narrowed

    def watched(held, method, slots):
        alive_before.append(sum(keys() is not None for keys in earlier))
        found = narrowed(held, method, slots)
        if found is not held:
            earlier.append(weakref.ref(held.keys))
        return found

    monkeypatch.setattr(spanning, "_narrowed", watched)
    fill(model, winnow.CompressedCache(model, winnow.method(name, 12)), prompt(length=N))
    gc.collect()
    assert len(earlier) >= LAYERS - 1
    assert max(alive_before) <= 1


def test_a_layer_adds_no_keys_and_values_to_what_is_alive(monkeypatch):
    length, layers, budget, living, add = 512, 6, 20, [], LayersTogether.add
    model = build("llama", num_hidden_layers=layers, max_position_embeddings=length)
    model.set_attn_implementation("winnow")

    def watched(self, row, method, view, *args):
        add(self, row, method, view, *args)
        if view.layer in (2, layers - 1):  # the pool is full
            living.append(sum(alive().values()))

    monkeypatch.setattr(LayersTogether, "add", watched)
    cache = winnow.CompressedCache(model, winnow.method("snapkv+global", budget))
    fill(model, cache, prompt(length=length), logits_to_keep=1)
    tail = cache.compressed_layers()[0].tail
    scores = HEADS * length * 4
    per_layer = scores + tail.keys.nbytes + tail.values.nbytes + 2048
    assert living[1] - living[0] <= (layers - 3) * per_layer
    assert per_layer < length * HEADS * SLOT / 4


def test_a_prompt_prefilled_once_serves_several_methods(model):
    names = ["snapkv+global @ 12", "snapkv+cake(rows=8) @ 20", "adakv @ 16", "snapkv+global+bits(4) @ 30%"]
    methods = [winnow.method(name) for name in names]
    dense = DenseReader(model, methods).read(prompt(length=N))
    for method in methods:
        forked = dense.compress(method).cache
        assert kept_of(forked) == kept_of(winnow.compress(model, prompt(length=N), method))


def test_contexts_are_saved_and_loaded(model, tmp_path):
    context = winnow.compress(model, prompt(length=N), winnow.method("adakv+global+bits(4)", 20))
    context.save(tmp_path / "pool.safetensors")
    loaded = winnow.load_context(tmp_path / "pool.safetensors", model)
    assert kept_of(loaded) == kept_of(context)
    step = prompt(length=2, seed=9)
    assert torch.equal(fill(model, loaded.cache(), step), fill(model, context.cache(), step))


@pytest.mark.parametrize("name", ["snapkv+global", "snapkv+cake(rows=8)"])
def test_beams_forks_and_candidates(model, name):
    ids, options = prompt(length=N), {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    method = winnow.method(name, 20)
    greedy = model.generate(ids, past_key_values=winnow.CompressedCache(model, method), **options)
    one = winnow.CompressedCache(model, method)
    assert torch.equal(model.generate(ids, past_key_values=one, prompt_lookup_num_tokens=3, **options), greedy)
    assert kept_of(one) == kept_of(winnow.compress(model, ids, method))
    beams = winnow.CompressedCache(model, method)
    model.generate(ids, past_key_values=beams, num_beams=3, **options)
    assert kept_of(beams, 2) == kept_of(one)
    fork = copy.deepcopy(one)
    step = prompt(length=1, seed=3)
    assert torch.equal(fill(model, fork, step), fill(model, copy.deepcopy(one), step))


def test_a_prompt_that_waits_is_compressed_whole_before_the_next_tokens(model):
    method = winnow.method("snapkv+global", 12)
    waiting, plain = (winnow.CompressedCache(model, method) for _ in range(2))
    waiting.activate_past_recording()
    fill(model, waiting, prompt(length=N))
    fill(model, plain, prompt(length=N))
    step = prompt(length=1, seed=1)
    assert torch.equal(fill(model, waiting, step), fill(model, plain, step))
    assert kept_of(waiting) == kept_of(plain)


def test_an_interrupted_prompt_leaves_nothing_behind(model):
    method = winnow.method("snapkv+global", 12)
    cache = winnow.CompressedCache(model, method)
    fill_layers = model.model.layers[2].register_forward_pre_hook(_interrupt)
    with pytest.raises(KeyboardInterrupt):
        fill(model, cache, prompt(length=N))
    fill_layers.remove()
    with pytest.raises(CacheError, match="start again"):
        fill(model, cache, prompt(length=1))
    cache.reset()
    fill(model, cache, prompt(length=N, seed=5))
    assert kept_of(cache) == kept_of(winnow.compress(model, prompt(length=N, seed=5), method))


@pytest.mark.parametrize("name", ["snapkv+global", "adakv+cake(rows=8)"])
@pytest.mark.parametrize("place", [(1, 1), (3, 0), (3, 1)])
def test_a_layer_that_failed_halfway_comes_again(model, name, place, monkeypatch):
    ids = torch.cat([prompt(length=N), prompt(length=N, seed=1)])
    method, cache = winnow.method(name, 12), winnow.CompressedCache(model, winnow.method(name, 12))
    cache.activate_past_recording()
    fill(model, cache, ids)
    add = LayersTogether.add

    def once(self, row, method, view, *args):
        add(self, row, method, view, *args)
        if (view.layer, row) == place:
            monkeypatch.setattr(LayersTogether, "add", add)
            raise KeyboardInterrupt

    monkeypatch.setattr(LayersTogether, "add", once)
    with pytest.raises(KeyboardInterrupt):
        fill(model, cache, ids[:, :1])
    for ask in (cache.stats, lambda: cache.kept(0)):
        with pytest.raises(CacheError, match="was interrupted"):
            ask()
    fill(model, cache, ids[:, :1])
    whole = winnow.compress(model, ids, method)
    assert [kept_of(cache, row) for row in (0, 1)] == [kept_of(whole, row) for row in (0, 1)]


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_compression_goes_on(model, monkeypatch):
    method = winnow.method("snapkv+global", 12)
    cache = winnow.CompressedCache(model, method)
    cache.activate_past_recording()
    fill(model, cache, prompt(length=N))
    add = LayersTogether.add

    def once(self, row, method, view, *args):
        if view.layer == 2:
            monkeypatch.setattr(LayersTogether, "add", add)
            raise KeyboardInterrupt
        add(self, row, method, view, *args)

    monkeypatch.setattr(LayersTogether, "add", once)
    with pytest.raises(KeyboardInterrupt):
        fill(model, cache, prompt(length=1))
    fill(model, cache, prompt(length=1))
    assert kept_of(cache) == kept_of(winnow.compress(model, prompt(length=N), method))


@pytest.mark.parametrize("family", ["gemma3_text", "falcon_h1", "qwen3_next"])
def test_hybrid_models_share_the_slots_of_their_full_layers(family):
    model = build(family)
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, winnow.method("snapkv+global", 12))
    fill(model, cache, prompt(length=30))
    full = [sum(layer.slots()) for layer in cache.compressed_layers()]
    assert sum(full) == 12 * sum(cache.compression.heads)
    fill(model, cache, prompt(length=1))


def test_what_cannot_be_is_refused(model):
    for name in ("kvec+global", "kvec+cake", "kvec+ada+zigzag"):
        with pytest.raises(MethodError, match="earlier layers kept"):
            winnow.method(name, 40)
    for options in ({"fold_every": 16}, {"fold_turns": 16}):
        with pytest.raises(MethodError, match="all layers are known"):
            winnow.CompressedCache(model, winnow.method("snapkv+global", 40), **options)
    with pytest.raises(MethodError, match="do the same work"):
        winnow.method("snapkv+global+cake", 40)
