"""Memory is really freed: what the statistics say is what is alive."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import winnow
from support.alive import alive, alive_since
from support.families import build, prompt
from winnow.kernels import native

N, BUDGET, LAYERS = 512, 20, 3


@pytest.fixture(scope="module")
def model():
    made = build("llama", num_hidden_layers=LAYERS)
    made.set_attn_implementation("winnow")
    return made


def fill(model, cache, ids) -> None:
    with torch.no_grad():
        model(ids, past_key_values=cache, logits_to_keep=1)


@pytest.fixture(params=["native", "reference"])
def kernels(request, monkeypatch):
    """The kernels of this machine, and plain torch, whose plans hold the slots of all blocks."""
    if request.param == "reference":
        monkeypatch.setattr(native, "library", lambda: None)
    return request.param


@pytest.mark.parametrize("name", ["snapkv", "adakv", "pyramidkv", "h2o", "full"])
def test_held_bytes_are_the_bytes_of_the_tensors_alive(model, name, kernels):
    method = winnow.method(name) if name == "full" else winnow.method(name, budget=BUDGET)
    ids, step = prompt(rows=2, length=N), prompt(rows=2, length=1)
    fill(model, winnow.CompressedCache(model, method), ids[:, :8] if name == "full" else ids)
    before = alive()
    cache = winnow.CompressedCache(model, method)
    fill(model, cache, ids)
    for _ in range(70):
        fill(model, cache, step)
    added = alive_since(before)
    stats = cache.stats()
    assert sum(added.values()) == stats.held_bytes == sum(stats.bytes.values())
    assert stats.used_bytes <= stats.held_bytes
    assert stats.full_bytes == LAYERS * 2 * 2 * (N + 70) * 16 * 2 * 4
    assert stats.tokens_seen == N + 70
    assert stats.tail_tokens == [70, 70]


@given(
    st.sampled_from(["snapkv", "adakv+bits(4)", "h2o", "full"]),
    st.sampled_from([None, 5]),
    st.lists(st.sampled_from([1, 1, 3, 9, 70]), max_size=6),
    st.booleans(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_held_adds_up(model, name, every, later, defer):
    method = winnow.method(name) if name == "full" else winnow.method(name, budget=BUDGET)
    folds = None if name == "full" or defer else every
    cache = winnow.CompressedCache(model, method, fold_every=folds, defer=defer)
    fill(model, cache, prompt(rows=2, length=60))
    for chunk in [] if defer else later:
        fill(model, cache, prompt(rows=2, length=chunk))
    stats, tails = cache.stats(), [layer.tail for layer in cache.compressed_layers()]
    parts = (stats.prefix_bytes, stats.tail_bytes, stats.reserve_bytes, stats.other_bytes)
    assert sum(parts) == stats.held_bytes
    assert min(parts) >= 0
    token = 2 * 2 * 16 * 4  # keys and values of two heads
    assert stats.tail_bytes == sum(int(tail.lengths.sum()) * token for tail in tails)
    assert stats.tail_bytes + stats.reserve_bytes == sum(tail.keys.nbytes + tail.values.nbytes for tail in tails)
    prefixes = [prefix for layer in cache.compressed_layers() for prefix in layer.prefixes if prefix is not None]
    slots = sum(sum(prefix.bytes().values()) for prefix in prefixes)
    assert slots <= stats.prefix_bytes < slots + 20_000, "what plans of decode attention hold comes on top"


def test_a_prompt_that_waits_is_dense_tokens(model):
    cache = winnow.CompressedCache(model, winnow.method("snapkv", budget=BUDGET), prompt_length=N)
    assert cache.stats().held_bytes == 0
    fill(model, cache, prompt(length=100))
    stats = cache.stats()
    assert stats.tail_bytes == stats.full_bytes
    fill(model, cache, prompt(length=N - 100))
    assert cache.stats().tail_bytes == 0


def test_plans_count_as_indices(model, kernels):
    """One block of 64 slots per row, layer and KV head: int64 slots, bool absences, and the head."""
    cache = winnow.CompressedCache(model, winnow.method("snapkv", budget=BUDGET))
    fill(model, cache, prompt(rows=2, length=N))
    before = cache.stats().bytes["indices"]
    fill(model, cache, prompt(rows=2, length=1))
    blocks = 2 * LAYERS * 2 if kernels == "reference" or native.library() is None else 0
    assert cache.stats().bytes["indices"] == before + blocks * (64 * 8 + 64 + 8)
    cache.batch_repeat_interleave(3)
    assert cache.stats().bytes["indices"] == before + 4 * LAYERS * 8, "a length per row and layer; the plan is gone"


def test_a_small_budget_frees_the_rest(model):
    cache = winnow.CompressedCache(model, winnow.method("adakv", budget=BUDGET))
    fill(model, cache, prompt(length=N))
    stats = cache.stats()
    slots = sum(map(sum, stats.slots))
    assert slots == LAYERS * 2 * BUDGET
    assert stats.bytes["keys"] == stats.bytes["values"] == slots * 16 * 4
    # Positions and offsets: 4 bytes a slot and a few per layer; D = 16 here, so they weigh more than in real models.
    assert stats.bytes["indices"] == slots * 4 + LAYERS * 3 * 8 + LAYERS * 8
    assert stats.bytes["other"] == 0


def test_prefill_never_holds_more_than_one_layers_dense_keys_and_values(model):
    """Looked at inside every layer, right after its attention, when its own keys and values are still in scope."""
    held: list[int] = []

    def look(*_) -> None:
        dense = [each for each in gc.get_objects() if isinstance(each, Tensor) and _is_dense(each)]
        held.append(len({each.untyped_storage().data_ptr() for each in dense}))

    hooks = [layer.self_attn.o_proj.register_forward_pre_hook(look) for layer in model.model.layers]
    try:
        fill(model, winnow.CompressedCache(model, winnow.method("snapkv", budget=BUDGET)), prompt(length=N))
        ours, held[:] = list(held), []
        fill(model, None, prompt(length=N))
    finally:
        for hook in hooks:
            hook.remove()
    # One rotated key tensor and one value tensor, whichever the layer; the stock cache gathers two per layer.
    assert ours == [2] * LAYERS
    assert held == [2 * (i + 1) for i in range(LAYERS)]


def _is_dense(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.shape[1:] == (2, N, 16)


def test_sliding_layers_own_only_their_window():
    model = build("gemma3_text")
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, winnow.method("snapkv", budget=BUDGET))
    fill(model, cache, prompt(length=N))
    for layer in (0, 2):
        keys = cache.layers[layer].keys
        assert keys.shape[2] == 7
        assert keys.untyped_storage().nbytes() == keys.nbytes
    assert cache.stats().bytes["other"] == 2 * 2 * keys.nbytes


def test_a_fork_adds_only_its_own_tail(model):
    cache = winnow.CompressedCache(model, winnow.method("snapkv", budget=BUDGET))
    fill(model, cache, prompt(length=N))
    before = alive()
    fork = copy.deepcopy(cache)
    added = sum(alive_since(before).values())
    tail = fork.stats().bytes["tail_keys"] + fork.stats().bytes["tail_values"]
    assert added == tail + LAYERS * 8
    assert tail < cache.stats().bytes["keys"] * 10


def test_rows_that_share_a_prefix_count_it_once(model):
    cache = winnow.CompressedCache(model, winnow.method("snapkv", budget=BUDGET))
    fill(model, cache, prompt(length=N))
    one = cache.stats()
    cache.batch_repeat_interleave(5)
    five = cache.stats()
    assert five.rows == 5
    assert five.bytes["keys"] == one.bytes["keys"]
    assert five.slots == one.slots
    assert five.full_bytes == 5 * one.full_bytes


def test_reset_gives_everything_back(model):
    before = alive()
    cache = winnow.CompressedCache(model, winnow.method("snapkv", budget=BUDGET))
    fill(model, cache, prompt(length=N))
    cache.reset()
    assert not alive_since(before)
    assert cache.stats().held_bytes == 0
    fill(model, cache, prompt(length=30))
    assert cache.stats().tokens_seen == 30


def test_nothing_retained_carries_a_graph(model):
    cache = winnow.CompressedCache(model, winnow.method("snapkv", budget=BUDGET))
    model(prompt(length=N), past_key_values=cache)
    for layer in cache.compressed_layers():
        held = [layer.tail.keys, layer.tail.values, layer.prefixes[0].block.keys, layer.prefixes[0].block.values]
        assert not any(each.requires_grad for each in held)


def test_the_tail_grows_in_steps_not_per_token(model):
    cache = winnow.CompressedCache(model, winnow.method("snapkv", budget=BUDGET))
    fill(model, cache, prompt(length=N))
    places = set()
    for _ in range(200):
        fill(model, cache, prompt(length=1))
        places.add(cache.compressed_layers()[0].tail.keys.data_ptr())
    assert len(places) <= 5


@pytest.mark.parametrize(("name", "queries"), [("adakv", 8), ("h2o", 16)])
def test_a_cache_that_folds_holds_what_it_says(model, name, queries):
    method, ids = winnow.method(name, budget=BUDGET), prompt(rows=2, length=N)
    before = alive()
    cache = winnow.CompressedCache(model, method, fold_every=16)
    fill(model, cache, ids)
    for _ in range(70):
        fill(model, cache, prompt(rows=2, length=1))
    added = alive_since(before)
    stats = cache.stats()
    assert sum(added.values()) == stats.held_bytes == sum(stats.bytes.values())
    # The last queries, of 2 rows and 4 heads of every layer, and room for the next one.
    assert stats.bytes["other"] == LAYERS * 2 * 4 * (queries + 1) * 16 * 4
    assert stats.tail_tokens == [70 % 16] * 2
