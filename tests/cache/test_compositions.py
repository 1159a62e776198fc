"""Packed stores under every kind of eviction, through a model: what is held, and what is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import winnow
from support.alive import alive, alive_since
from support.families import prompt
from support.packed_caches import (
    BUDGET,
    GREEDY,
    HEADS,
    LAYERS,
    NEW,
    N,
    by_scores,
    composed,
    dense_logits,
    fed,
    filled,
    made,
    prefix_bytes,
)
from support.turns import one_in
from winnow import CompressedCache
from winnow.kernels import PackedBlock, parts_of

pytestmark = pytest.mark.usefixtures("one_thread")


EVICTIONS = ["snapkv", "adakv", "pyramidkv", "h2o", "tova", "knorm", "streamingllm", "headkv-r2", "kvec", "aperturekv"]
CHANNELS = ["spark(0.5)", "spark(0.8, values=0.5)", "spark-p(0.9)", "spark-g(4)", "think(0.5)"]
BITS = ["", "bits(8)", "bits(4)", "bits(8, 4)", "mixedbits(5)"]


def combinations() -> list[str]:
    """Every store at least once, evictions taking turns."""
    stores = ["+".join(filter(None, (c, b))) for c in ("", *CHANNELS) for b in BITS]
    stores += ["kivi(4)", "kivi(2)", "think(0.5)+kivi(4)", "think(0.3)+kivi(8)", "spark(0.5, recovery=gaussian)"]
    stores += ["bits(6)", "bits(3)", "bits(4, group=32)", "think(0.5)+bits(3, group=64)"]
    stores += ["spark(0.5, sign=query, norm=mean)+bits(2)", "spark(0.3, recent=pruned)", "spark-g(5, sign=none)"]
    evictions = [EVICTIONS[index % len(EVICTIONS)] for index in range(len(stores))]
    return [f"{eviction}+{store}" for eviction, store in zip(evictions, stores, strict=True) if store]


@pytest.mark.parametrize("name", combinations())
def test_logits_are_those_of_dense_attention_over_what_is_recovered(packed_model: Any, name: str) -> None:
    method = composed(name)
    ids = prompt(length=N + NEW)
    past = filled(packed_model, ids[:, :N], method)
    assert any(isinstance(part, PackedBlock) for layer in past.compressed_layers() for part in parts(layer))
    expected = dense_logits(packed_model, past, ids, N)
    torch.testing.assert_close(fed(packed_model, past, ids[:, N:]), expected, atol=1e-4, rtol=1e-4)


def parts(layer: Any) -> Sequence[Any]:
    """The blocks of one format that a layer's only prefix consists of."""
    (prefix,) = layer.distinct_prefixes()
    return parts_of(prefix.block)


@pytest.mark.parametrize("name", one_in(3, combinations()[::2]))
def test_held_bytes_are_the_bytes_of_the_tensors_alive(packed_model: Any, name: str) -> None:
    method, ids = composed(name), prompt(length=N)
    filled(packed_model, ids, method)  # tables of bits and places are made once
    before = alive()
    past = filled(packed_model, ids, method)
    stats = past.stats()
    added = alive_since(before)
    assert sum(added.values()) == stats.held_bytes == sum(stats.bytes.values())


@pytest.mark.parametrize("name", one_in(2, combinations(), at=1))
def test_generation_and_names(packed_model: Any, name: str) -> None:
    method, ids = composed(name), prompt(length=N)
    out = packed_model.generate(ids, past_key_values=CompressedCache(packed_model, method), **GREEDY)
    assert out.shape == (1, N + 6)
    past = filled(packed_model, ids, method)
    fork = fed(packed_model, past, out[:, N:-1]).argmax(-1)
    assert torch.equal(fork[:, :-1], out[:, N + 1 : -1])
    if not by_scores(name):
        again = winnow.method(str(method))
        assert again == method
        assert hash(again) == hash(method)


@pytest.mark.parametrize("budget", [BUDGET, "30%"])
@pytest.mark.parametrize("eviction", ["snapkv", "ada-pyramidkv", "criticalkv", "kvec"])
def test_tokens_and_percent_keep_the_same_slots_whatever_the_store(
    packed_model: Any, eviction: str, budget: int | str
) -> None:
    ids = prompt(length=N)
    dense = filled(packed_model, ids, composed(eviction, budget))
    for store in ("spark(0.8)", "spark-p(0.9)+bits(8)", "think+kivi", "bits(8, 4)"):
        packed = filled(packed_model, ids, composed(f"{eviction}+{store}", budget))
        for layer in range(LAYERS):
            assert [k.tolist() for k in packed.kept(layer)] == [k.tolist() for k in dense.kept(layer)]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 0.06), (torch.float16, 0.02)], ids=["bfloat16", "float16"]
)
@pytest.mark.parametrize("store", ["spark(0.5)", "spark-p(0.9)+bits(8)", "think+kivi(4)", "bits(8, 4)"])
def test_half_precision(store: str, dtype: torch.dtype, tolerance: float) -> None:
    model, ids = made(dtype), prompt(length=N + NEW)
    past = filled(model, ids[:, :N], composed(f"snapkv+{store}"))
    with torch.no_grad():
        found = model(ids[:, N:], past_key_values=past).logits.float()
    single = made()
    before = {name: each.clone() for name, each in single.state_dict().items()}
    single.load_state_dict(model.state_dict())
    try:
        expected = dense_logits(single, past, ids, N)
    finally:
        single.load_state_dict(before)
    assert (found - expected).abs().max() < tolerance * expected.abs().max()


@pytest.mark.parametrize("store", ["bits(8)", "spark(0.5)", "kivi(4)", "think+bits(4)", "spark-p(0.99)"])
def test_full_caches_can_be_packed(packed_model: Any, store: str) -> None:
    method = winnow.method(f"full+{store}")
    assert method.full
    ids = prompt(length=N + NEW)
    past = filled(packed_model, ids[:, :N], method)
    assert [[len(head) for head in past.kept(layer)] for layer in range(LAYERS)] == [[N] * HEADS] * LAYERS
    expected = dense_logits(packed_model, past, ids, N)
    torch.testing.assert_close(fed(packed_model, past, ids[:, N:]), expected, atol=1e-4, rtol=1e-4)
    assert prefix_bytes(past) < prefix_bytes(filled(packed_model, ids[:, :N], winnow.method("full")))


def test_eight_bits_are_close_to_the_model_itself(packed_model: Any) -> None:
    ids = prompt(length=N + NEW)
    exact = fed(packed_model, filled(packed_model, ids[:, :N], winnow.method("full")), ids[:, N:])
    for store, limit in (("bits(8)", 0.03), ("kivi(8)", 0.03), ("spark(0.1)", 0.15), ("spark-p(0.999)", 0.03)):
        found = fed(packed_model, filled(packed_model, ids[:, :N], winnow.method(f"full+{store}")), ids[:, N:])
        assert (found - exact).abs().max() < limit * exact.abs().max()
