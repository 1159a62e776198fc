"""Packed slots against what the papers say, in plain float64 loops: SPARK, ThinK, CoKV's quantiser, KIVI.

Nothing here asks `winnow.store` how to pack: expected channels, statistics, scales and integers are worked out from the
keys, values and queries alone, and compared with what a block recovers to, with the bits that it holds and with their
bytes.
"""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.views import random_view
from winnow.errors import MethodError, ModelError
from winnow.heads import HeadScores
from winnow.kernels import AttentionSpec, Block, PackedBlock, Parts, PrefixBlock, TailSegments, attend
from winnow.kernels.interface import parts_of
from winnow.kernels.reference import ReferencePlan
from winnow.select import Selection
from winnow.store import (
    AllChannels,
    AsIs,
    Bits,
    Channels,
    Dense,
    Kivi,
    LayerShape,
    MixedBits,
    Packed,
    Precision,
    Spark,
    SparkG,
    SparkP,
    Store,
    Think,
)
from winnow.view import LayerView

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 2.0**-19, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""What a statistic of a slot may be off by, in relation to its size, once it is rounded to the model's dtype."""
DIMS = [(20, 20), (40, 24), (80, 80), (96, 128), (128, 96)]
WINDOW = 4


# --- layers and what a block holds ---------------------------------------------------------------------------------


def layer_of(
    dim: int = 20,
    value_dim: int | None = None,
    length: int = 24,
    heads: int = 2,
    group: int = 2,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    layer: int = 0,
) -> LayerView:
    """A random layer whose queries use some channels far more than others and have a mean, as real ones do."""
    view = random_view(heads, group, length, dim, seed=seed, layer=layer)
    generator = torch.Generator().manual_seed(1000 + seed)
    weights = torch.rand(heads * group, 1, dim, generator=generator) + 0.2
    shift = torch.randn(heads * group, 1, dim, generator=generator)
    values = torch.randn(heads, length, value_dim or dim, generator=generator)
    return view._replace(
        queries=(view.queries * weights + shift).to(dtype), keys=view.keys.to(dtype), values=values.to(dtype)
    )


def selected(counts: Sequence[int], length: int, window: int = WINDOW, seed: int = 0) -> Selection:
    """Random positions of every head, the window's among them as far as the head has room for it."""
    generator = torch.Generator().manual_seed(seed)
    positions = []
    for count in counts:
        recent = min(count, window, length)
        older = torch.randperm(length - recent, generator=generator)[: count - recent]
        positions.append(torch.cat([older, torch.arange(length - recent, length)]).sort().values)
    offsets = torch.tensor([0, *np.cumsum([len(each) for each in positions]).tolist()])
    return Selection(torch.cat(positions), offsets)


class Slot(NamedTuple):
    """A kept slot: where it comes from, and what it was and is in float64."""

    head: int
    position: int
    recent: bool
    """Whether it is one of the head's slots in the window."""
    key: np.ndarray
    value: np.ndarray
    found_key: np.ndarray
    found_value: np.ndarray


def slots_of(block: Block, view: LayerView, selection: Selection, window: int) -> Iterator[Slot]:
    """Every kept slot, head after head, beside what the block takes it for."""
    assert torch.equal(block.offsets, selection.offsets)
    keys, values = block.recover(torch.arange(int(block.offsets[-1])))
    length = view.keys.shape[1]
    for head, (start, stop) in enumerate(pairwise(selection.offsets.tolist())):
        for index in range(start, stop):
            position = int(selection.positions[index])
            yield Slot(
                head,
                position,
                position >= length - window,
                view.keys[head, position].double().numpy(),
                view.values[head, position].double().numpy(),
                keys[index].double().numpy(),
                values[index].double().numpy(),
            )


def packed_in(block: Block) -> PackedBlock:
    """The only packed part of a prefix."""
    (part,) = [part for part in parts_of(block) if isinstance(part, PackedBlock)]
    return part


def bytes_held(block: Block, selection: Selection) -> int:
    """All that a prefix takes: its tensors by kind, and an int32 for every position."""
    return sum(block.bytes().values()) + 4 * len(selection.positions)


# --- SPARK ---------------------------------------------------------------------------------------------------------


def norms_of(view: LayerView, queries: int, norm: str) -> np.ndarray:
    """n_j [H, D] of the last queries of a head's group: root mean square, or size of the mean (paper)."""
    group = view.queries.shape[0] // view.keys.shape[0]
    result = []
    for head in range(view.keys.shape[0]):
        rows = view.queries[head * group : (head + 1) * group, -queries:].double().numpy()
        rows = rows.reshape(-1, rows.shape[-1])
        result.append(np.sqrt((rows**2).mean(0)) if norm == "rms" else np.abs(rows.mean(0)))
    return np.stack(result)


def query_signs(view: LayerView, queries: int) -> np.ndarray:
    """Sign of the mean query [H, D]."""
    group = view.queries.shape[0] // view.keys.shape[0]
    means = view.queries[:, -queries:].double().mean(1).reshape(-1, group, view.keys.shape[-1]).mean(1)
    return np.where(means.numpy() < 0, -1.0, 1.0)


def top(sizes: np.ndarray, count: int) -> list[int]:
    """The channels of the `count` largest sizes, ascending; the lower channel first among equals."""
    return sorted(sorted(range(len(sizes)), key=lambda j: (-sizes[j], j))[:count])


def needed(saliency: np.ndarray, share: float) -> int:
    """The fewest channels whose saliencies reach a share of their sum."""
    ordered, total = np.sort(saliency)[::-1], 0.0
    for count, each in enumerate(ordered, 1):
        total += each
        if total >= share * saliency.sum():
            return count
    return len(saliency)


def assert_spark(view: LayerView, how: Spark | SparkP | SparkG, selection: Selection, window: int) -> list[int]:
    """Every key is what Eq. 7, 8 and 11 make of it; returns the channels that each pruned slot kept."""
    block = Packed(how).pack(view, selection, window)
    norms = norms_of(view, how.queries, how.norm)
    asked = query_signs(view, how.queries)
    # Means near zero are only as exact as their sum.
    close = max(ROUNDING[view.keys.dtype], 1e-4 if how.norm == "mean" else 0)
    counts = []
    for slot in slots_of(block, view, selection, window):
        if slot.recent and how.recent == "dense":
            np.testing.assert_array_equal(slot.found_key, slot.key)
            continue
        saliency = norms[slot.head] * np.abs(slot.key)
        kept = top(saliency, kept_by(how, saliency))
        counts.append(len(kept))
        gone = [j for j in range(len(saliency)) if j not in kept]
        np.testing.assert_array_equal(slot.found_key[kept], slot.key[kept])
        if gone:
            signs = {
                "stored": np.where(slot.key < 0, -1.0, 1.0),
                "query": asked[slot.head],
                "none": np.ones(norms.shape[1]),
            }
            expected = signs[how.sign] * saliency[gone].mean() / norms[slot.head]
            np.testing.assert_allclose(slot.found_key[gone], expected[gone], rtol=close)
    return counts


def kept_by(how: Spark | SparkP | SparkG, saliency: np.ndarray) -> int:
    """T of a slot."""
    dim = len(saliency)
    if isinstance(how, Spark):
        return dim - math.floor(how.ratio * dim)
    if isinstance(how, SparkP):
        return needed(saliency, how.share)
    shares = {4: (0.25, 0.5, 0.75, 1.0), 5: (0.1, 0.3, 0.5, 0.7, 0.9)}[how.groups]
    levels = [math.floor(share * dim + 0.5) for share in shares]
    return next((level for level in levels if level >= needed(saliency, how.share)), levels[-1])


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("sign", ["stored", "query", "none"])
@pytest.mark.parametrize("norm", ["rms", "mean"])
def test_spark_keeps_the_most_salient_channels_and_recovers_the_others(
    dims: tuple[int, int], sign: Any, norm: Any
) -> None:
    view = layer_of(*dims, seed=dims[0])
    selection = selected([9, 13], 24)
    for ratio in (0.3, 0.5, 0.8):
        how = Spark(ratio=ratio, sign=sign, norm=norm, queries=5)
        counts = assert_spark(view, how, selection, WINDOW)
        assert counts == [dims[0] - math.floor(ratio * dims[0])] * (22 - 2 * WINDOW)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recent", ["dense", "pruned"])
def test_spark_leaves_the_window_as_it_is_or_prunes_it(dtype: torch.dtype, recent: Any) -> None:
    view, selection = layer_of(40, 24, dtype=dtype), selected([6, 10], 24)
    pruned = assert_spark(view, Spark(recent=recent), selection, WINDOW)
    assert len(pruned) == (16 if recent == "pruned" else 8)


@pytest.mark.parametrize("queries", [1, 7, 32, 500])
def test_saliency_looks_at_the_last_queries(queries: int) -> None:
    """As many as it asks for, of prompts of any length; more than there are means all."""
    view, selection = layer_of(length=50), selected([20, 20], 50)
    how = Spark(queries=queries)
    assert Packed(how).queries_needed(50) == min(queries, 50)
    assert_spark(view._replace(queries=view.queries[:, -min(queries, 50) :]), how, selection, WINDOW)
    assert_spark(view, how, selection, WINDOW)


def test_equal_saliencies_keep_the_lower_channels() -> None:
    view = layer_of(8, heads=1, group=1, length=6)
    keys = torch.tensor([1.0, -2, 2, 1, -1, 2, 1, 2]).expand(1, 6, 8).contiguous()
    view = view._replace(keys=keys, queries=torch.ones_like(view.queries))
    selection = selected([6], 6, 0)
    for ratio, kept in ((0.5, [1, 2, 5, 7]), (0.625, [1, 2, 5]), (0.25, [0, 1, 2, 3, 5, 7]), (0.4, [0, 1, 2, 5, 7])):
        masks = packed_in(Packed(Spark(ratio=ratio)).pack(view, selection, 0)).keys.pruned
        assert masks is not None
        assert masks.masks.tolist() == [[sum(1 << j for j in kept)]] * 6
    flat = view._replace(keys=torch.full_like(keys, 0.7))
    pruned = packed_in(Packed(Spark()).pack(flat, selection, 0)).keys.pruned
    assert pruned is not None
    assert pruned.masks.tolist() == [[15]] * 6


@pytest.mark.parametrize("ratio", [0.05, 0.1, 0.15, 0.29, 0.3, 0.35, 0.55, 0.57, 0.58, 0.7, 0.9])
@pytest.mark.parametrize("dim", [20, 40, 80, 100, 128])
def test_a_share_of_the_channels_is_taken_as_it_is_written(ratio: float, dim: int) -> None:
    """⌊λD⌋ of decimal fractions, which binary ones may miss: 0.29 of 100 is 29."""
    expected = dim - int(round(ratio * 100) * dim // 100)
    assert (Spark(ratio=ratio).rule(dim).most, Think(ratio=ratio).kept(dim)) == (expected, expected)


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
def test_spark_p_keeps_the_fewest_channels_that_reach_the_share(dims: tuple[int, int], share: float) -> None:
    view, selection = layer_of(*dims, seed=3), selected([9, 0], 24)
    counts = assert_spark(view, SparkP(share=share), selection, WINDOW)
    assert len(set(counts)) > 1 or share == 0.99
    for sign in ("query", "none"):
        assert assert_spark(view, SparkP(share=share, sign=sign), selection, WINDOW) == counts


@pytest.mark.parametrize("groups", [4, 5])
@pytest.mark.parametrize("share", [0.3, 0.8, 0.97])
def test_spark_g_gives_each_slot_the_lowest_level_that_reaches_the_share(groups: int, share: float) -> None:
    """Keys of all kinds of concentration, so that every level is somebody's."""
    view, selection = layer_of(40, length=60), selected([50, 60], 60)
    steep = torch.linspace(0, 0.5, 60)[None, :, None] * torch.arange(40.0)
    view = view._replace(keys=view.keys * torch.exp(-steep))
    counts = assert_spark(view, SparkG(groups=groups, share=share), selection, WINDOW)
    levels = {4: {10, 20, 30, 40}, 5: {4, 12, 20, 28, 36}}[groups]
    assert set(counts) <= levels
    assert len(set(counts)) >= 2 or share == 0.3


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("values", [0.3, 0.5, 0.8])
def test_spark_prunes_values_by_magnitude_and_fills_them_with_their_mean(dims: tuple[int, int], values: float) -> None:
    view, selection = layer_of(*dims, seed=7), selected([9, 12], 24)
    block = Packed(Spark(values=values, recent="pruned")).pack(view, selection, WINDOW)
    for slot in slots_of(block, view, selection, WINDOW):
        kept = top(np.abs(slot.value), dims[1] - math.floor(values * dims[1]))
        gone = [j for j in range(dims[1]) if j not in kept]
        np.testing.assert_array_equal(slot.found_value[kept], slot.value[kept])
        np.testing.assert_allclose(slot.found_value[gone], slot.value[gone].mean(), rtol=1e-5, atol=1e-7)


def drawn(how: Spark, length: int = 220) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(w̃, μ, σ) of every pruned entry of a long layer: what was drawn, and the moments of the slot's saliencies."""
    view, selection = layer_of(64, length=length, seed=5), selected([length, length], length, 0)
    block = Packed(how).pack(view, selection, 0)
    norms = norms_of(view, how.queries, how.norm)
    found = []
    for slot in slots_of(block, view, selection, 0):
        saliency = norms[slot.head] * np.abs(slot.key)
        kept = top(saliency, kept_by(how, saliency))
        for j in set(range(len(saliency))) - set(kept):
            found.append((slot.found_key[j] * norms[slot.head, j], saliency.mean(), saliency.std()))
    sizes, means, deviations = np.array(found).T
    return sizes, means, deviations


def test_gaussian_recovery_has_the_moments_of_all_saliencies() -> None:
    sizes, means, deviations = drawn(Spark(recovery="gaussian", sign="none"))
    normal = (sizes - means) / deviations
    assert len(normal) == 2 * 220 * 32
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03
    assert abs((np.abs(normal) < 1).mean() - 0.683) < 0.02


def test_exponential_recovery_has_the_mean_of_all_saliencies() -> None:
    sizes, means, _ = drawn(Spark(recovery="exponential", sign="none"))
    scaled = sizes / means
    assert scaled.min() >= 0
    assert abs(scaled.mean() - 1) < 0.03
    assert abs(scaled.std() - 1) < 0.06
    assert abs((scaled > 1).mean() - math.exp(-1)) < 0.02


@pytest.mark.parametrize("recovery", ["gaussian", "exponential"])
def test_draws_belong_to_a_slot_and_a_seed(recovery: Any) -> None:
    view, selection = layer_of(64, length=30), selected([30, 30], 30, 0)

    def keys(seed: int, selection: Selection = selection) -> Tensor:
        block = Packed(Spark(recovery=recovery, seed=seed)).pack(view, selection, 0)
        return block.recover(torch.arange(int(block.offsets[-1])))[0]

    assert torch.equal(keys(3), keys(3))
    assert not torch.equal(keys(3), keys(4))
    few = selected([5, 11], 30, 0, seed=8)
    whole = keys(3).view(2, 30, 64)
    alone = torch.cat([whole[h, few.positions[a:b]] for h, (a, b) in enumerate(pairwise(few.offsets.tolist()))])
    assert torch.equal(keys(3, few), alone)


@pytest.mark.parametrize(("ratio", "expected"), [(0.5, 154), (0.8, 83)])
def test_bytes_of_a_key_of_128_channels(ratio: float, expected: int) -> None:
    view, selection = layer_of(128, dtype=torch.bfloat16), selected([8, 17], 24, 0)
    kinds = packed_in(Packed(Spark(ratio=ratio)).pack(view, selection, 0)).bytes()
    constants = 2 * 128 * 4
    assert kinds["keys"] + kinds["masks"] + kinds["signs"] + kinds["statistics"] - constants == 25 * expected
    assert kinds["values"] == Dense().pack(view, selection, 0).bytes()["keys"] == 25 * 256


@pytest.mark.parametrize("how", [SparkP(share=0.9), SparkG(groups=4), SparkG(groups=5)])
def test_bytes_of_slots_that_keep_different_numbers_of_channels(how: SparkP | SparkG) -> None:
    view, selection = layer_of(40, dtype=torch.bfloat16, length=50), selected([50, 37], 50, 0)
    counts = assert_spark(view, how, selection, 0)
    kinds = packed_in(Packed(how).pack(view, selection, 0)).bytes()
    assert kinds["keys"] == 2 * sum(counts)
    assert kinds["signs"] == sum(-(-(40 - count) // 8) for count in counts)
    assert kinds["masks"] == 87 * 5


@pytest.mark.parametrize("split", [32, 64])
@pytest.mark.parametrize(
    "store", [Packed(Spark(values=0.5), Bits(high=4)), Packed(SparkP(share=0.9)), Packed(Think(), Kivi())]
)
def test_slots_packed_in_pieces_are_the_same(store: Packed, split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    view, selection = layer_of(40, 24, length=100), selected([90, 71], 100)
    whole = store.pack(view, selection, WINDOW)
    monkeypatch.setattr("winnow.store.packed._AT_ONCE", split)
    assert_same_tensors(store.pack(view, selection, WINDOW), whole)


# --- attention -----------------------------------------------------------------------------------------------------

HEAD_SCORES = HeadScores(torch.tensor([[0.5, 0.1, 0.8, 0.3], [0.2, 0.9, 0.7, 0.4]]), "random")
STORES: dict[str, Store] = {
    "spark": Packed(Spark()),
    "spark, query signs": Packed(Spark(ratio=0.8, sign="query", values=0.5)),
    "spark, gaussian": Packed(Spark(recovery="gaussian", recent="pruned")),
    "spark-p": Packed(SparkP(share=0.9)),
    "spark-g": Packed(SparkG(groups=5), Bits(high=8)),
    "spark and 4 bits": Packed(Spark(values=0.3), Bits(high=4)),
    "think": Packed(Think()),
    "think and kivi": Packed(Think(ratio=0.4), Kivi()),
    "2 bits": Packed(precision=Bits(high=2)),
    "kivi": Packed(precision=Kivi(width=2)),
    "8 and 2 bits": Packed(precision=Bits(high=8, low=2, scores=HEAD_SCORES)),
    "spark and mixed bits": Packed(Spark(), MixedBits(mean=6, scores=HEAD_SCORES)),
}


def by_scores(store: Packed) -> bool:
    """Whether it is for the four heads of the table alone."""
    return getattr(store.precision, "scores", None) is not None


@pytest.mark.parametrize("dims", [(20, 20), (40, 24), (128, 96)])
@pytest.mark.parametrize("name", STORES)
def test_attention_over_a_packed_block_is_attention_over_what_it_recovers_to(name: str, dims: tuple[int, int]) -> None:
    view = layer_of(*dims, length=90, heads=4, seed=2)
    selection = selected([60, 0, 1, 85], 90, 5)
    block = STORES[name].pack(view, selection, 5)
    generator = torch.Generator().manual_seed(4)
    query = torch.randn(1, 8, 2, dims[0], generator=generator)
    tail = TailSegments(
        torch.randn(1, 4, 5, dims[0], generator=generator),
        torch.randn(1, 4, 5, dims[1], generator=generator),
        torch.tensor([3]),
    )
    spec = AttentionSpec(view.scaling)
    keys, values = (each.double() for each in block.recover(torch.arange(int(block.offsets[-1]))))
    expected = torch.zeros(1, 2, 8, dims[1], dtype=torch.float64)
    for head, step in product(range(8), range(2)):
        own = slice(*block.offsets[head // 2 : head // 2 + 2].tolist())
        seen = 2 + step
        k = torch.cat([keys[own], tail.keys[0, head // 2, :seen].double()])
        v = torch.cat([values[own], tail.values[0, head // 2, :seen].double()])
        expected[0, step, head] = (k @ query[0, head, step].double() * spec.scaling).softmax(0) @ v
    for found in (attend(query, [block], tail, spec), ReferencePlan([block], tail, spec).run(query)):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


# --- ThinK ---------------------------------------------------------------------------------------------------------


def think_channels(view: LayerView, selection: Selection, ratio: float, queries: int) -> list[list[int]]:
    """Channels that stay of every head: mean of q² over window and group times mean of k² over the kept slots."""
    group, dim = view.queries.shape[0] // view.keys.shape[0], view.keys.shape[-1]
    kept = []
    for head, (start, stop) in enumerate(pairwise(selection.offsets.tolist())):
        asked = view.queries[head * group : (head + 1) * group, -queries:].double().square().mean((0, 1)).numpy()
        held = view.keys[head, selection.positions[start:stop]].double().square().mean(0).numpy()
        kept.append(top(asked * held, dim - math.floor(ratio * dim)))
    return kept


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", DIMS)
def test_think_drops_the_same_channels_of_all_slots_of_a_head(dims: tuple[int, int], dtype: torch.dtype) -> None:
    view, selection = layer_of(*dims, dtype=dtype, length=40, seed=1), selected([30, 11], 40)
    for ratio, queries in ((0.5, 32), (0.3, 6), (0.8, 1)):
        block = Packed(Think(ratio=ratio, queries=queries)).pack(view, selection, WINDOW)
        expected = think_channels(view, selection, ratio, queries)
        channels = packed_in(block).keys.channels
        assert channels is not None
        assert channels.tolist() == expected
        for slot in slots_of(block, view, selection, WINDOW):
            key = slot.key.copy()
            if not slot.recent:
                key[[j for j in range(dims[0]) if j not in expected[slot.head]]] = 0
            np.testing.assert_array_equal(slot.found_key, key)
            np.testing.assert_array_equal(slot.found_value, slot.value)


def test_think_takes_one_index_per_kept_channel_of_a_head() -> None:
    view, selection = layer_of(128, dtype=torch.bfloat16), selected([8, 17], 24, 0)
    kinds = packed_in(Packed(Think(ratio=0.4)).pack(view, selection, 0)).bytes()
    assert kinds == {"keys": 25 * 77 * 2, "values": 25 * 256, "indices": 3 * 8 + 2 * 77 * 2}


PEER_THINK = """
import json, sys
import numpy as np
import torch
from kvpress import ThinKPress
from support.peer_selections import Layer, attention_module
data = np.load(sys.argv[1])
found = []
for case in json.loads(str(data["cases"])):
    queries, keys, values = (torch.from_numpy(data[f"{case['name']}-{part}"]) for part in ("queries", "keys", "values"))
    heads, length, dim = keys.shape
    module = attention_module(case, Layer(queries, keys, values, torch.zeros(len(queries), dim, dim)))
    ones = torch.ones(1, length, dim)
    press = ThinKPress(key_channel_compression_ratio=case["ratio"], window_size=case["window"])
    hidden = queries.transpose(0, 1).reshape(1, length, -1)
    options = {"hidden_states": hidden, "position_embeddings": (ones, torch.zeros_like(ones))}
    pruned, _ = press.compress(module, hidden, keys[None].clone(), values[None], None, options)
    gone = (pruned[0] == 0).all(1)
    assert torch.equal(gone[:, None].expand_as(keys), pruned[0] == 0)
    found.append([(~row).nonzero()[:, 0].tolist() for row in gone])
print(json.dumps(found))
"""


def test_think_keeps_the_channels_of_kvpress(tmp_path: Path) -> None:
    """In a process of its own, because importing kvpress replaces functions of transformers; no slot is evicted."""
    if importlib.util.find_spec("kvpress") is None:
        pytest.skip("kvpress is not installed: pip install --no-deps kvpress==0.5.5 and what it imports")
    views = {"small": layer_of(20, length=50), "grouped": layer_of(128, length=80, heads=4, group=4, seed=9)}
    cases: list[dict[str, Any]] = [
        {"name": name, "ratio": ratio, "window": window, "layer": 0, "layers": 4}
        | {"heads": view.keys.shape[0], "group": view.queries.shape[0] // view.keys.shape[0]}
        for (name, view), ratio, window in product(views.items(), [0.3, 0.5, 0.8], [8, 32])
    ]
    parts = ("queries", "keys", "values")
    arrays = {f"{name}-{part}": getattr(view, part).numpy() for (name, view), part in product(views.items(), parts)}
    np.savez(tmp_path / "cases.npz", cases=np.array(json.dumps(cases)), **arrays)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PEER_THINK, str(tmp_path / "cases.npz")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    if "ModuleNotFoundError" in run.stderr or "PackageNotFoundError" in run.stderr:
        pytest.skip(f"kvpress cannot be imported: {run.stderr.strip().splitlines()[-1]}")
    assert run.returncode == 0, run.stderr
    for case, expected in zip(cases, json.loads(run.stdout.strip().splitlines()[-1]), strict=True):
        view = views[case["name"]]
        heads, length, _ = view.keys.shape
        everything = selected([length] * heads, length, 0)
        block = Packed(Think(ratio=case["ratio"], queries=case["window"])).pack(view, everything, 0)
        channels = packed_in(block).keys.channels
        assert channels is not None
        assert channels.tolist() == expected


# --- bits ----------------------------------------------------------------------------------------------------------


def rounded(number: float, dtype: torch.dtype) -> float:
    """A number in the model's dtype."""
    return float(torch.tensor(number, dtype=torch.float32).to(dtype))


def written_integers(data: Tensor, count: int, bits: int) -> np.ndarray:
    """Unsigned integers [n, count] out of bytes, one by one as `winnow.kernels.bits` documents them."""
    rows = data.numpy()
    if bits == 8:
        return rows.astype(int)
    together = 16 * 8 // bits
    found = np.zeros((len(rows), count), dtype=int)
    for number in range(count):
        block, inside = divmod(number, together)
        width = min(16, -(-(count - block * together) * bits // 8))
        shift = inside // width * bits
        found[:, number] = rows[:, block * 16 + inside % width] >> shift & (1 << bits) - 1
    return found


def assert_symmetric(numbers: np.ndarray, found: np.ndarray, bits: int, dtype: torch.dtype) -> None:
    """App. C.2 with the scale in the model's dtype: found = s·q, q the integer next to x / s inside ±(2^(b-1) - 1)."""
    most = max(1, 2 ** (bits - 1) - 1)
    scale = rounded(np.abs(numbers).max() / most, dtype)
    if scale == 0:
        np.testing.assert_array_equal(found, 0)
        return
    integers = found / scale
    np.testing.assert_allclose(integers, integers.round(), atol=1e-3)
    assert np.abs(integers).max() <= most + 1e-3
    assert (np.abs(integers - (numbers / scale).clip(-most, most)) <= 0.5 + 1e-4).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("dims", DIMS)
def test_bits_are_the_papers_quantiser(dims: tuple[int, int], bits: Any, dtype: torch.dtype) -> None:
    view, selection = layer_of(*dims, dtype=dtype, seed=bits), selected([9, 24], 24)
    block = Packed(precision=Bits(high=bits)).pack(view, selection, WINDOW)
    assert isinstance(block, PackedBlock), "the window is written in bits, too"
    for slot in slots_of(block, view, selection, WINDOW):
        assert_symmetric(slot.key, slot.found_key, bits, dtype)
        assert_symmetric(slot.value, slot.found_value, bits, dtype)
        step = np.abs(slot.key).max() / max(1, 2 ** (bits - 1) - 1)
        assert np.abs(slot.found_key - slot.key).max() <= step * (0.5 + 2 * ROUNDING[dtype])


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("dim", [20, 40, 33, 64, 65, 96, 128])
def test_integers_lie_in_memory_as_documented(dim: int, bits: Any) -> None:
    view, selection = layer_of(dim), selected([9, 24], 24)
    block = packed_in(Packed(precision=Bits(high=bits)).pack(view, selection, 0))
    entries = block.keys.entries
    assert entries.data.dtype == torch.uint8
    assert entries.data.shape == (33, -(-dim * bits // 8))
    unsigned = written_integers(entries.data, dim, bits)
    signed = np.where(unsigned >= 2 ** (bits - 1), unsigned - 2**bits, unsigned)
    assert entries.scales is not None
    expected = signed * entries.scales.double().numpy()[:, None]
    np.testing.assert_allclose(block.recover(torch.arange(33))[0], expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "how",
    [
        Spark(),
        Spark(ratio=0.8),
        SparkP(share=0.9),
        SparkG(),
        Think(),
    ],
)
def test_bits_after_channels_scale_by_what_was_kept(how: Channels, dtype: torch.dtype) -> None:
    view, selection = layer_of(40, 24, dtype=dtype), selected([9, 24], 24)
    block = Packed(how, Bits(high=4)).pack(view, selection, WINDOW)
    plain = Packed(how).pack(view, selection, WINDOW)
    if isinstance(how, Think):
        masks = np.zeros((2, 40), dtype=bool)
        for head, channels in enumerate(think_channels(view, selection, 0.5, 32)):
            masks[head, channels] = True
    norms = norms_of(view, 32, "rms")
    pairs = zip(slots_of(block, view, selection, WINDOW), slots_of(plain, view, selection, WINDOW), strict=True)
    for slot, whole in pairs:
        if slot.recent:
            np.testing.assert_array_equal(slot.found_key, slot.key)
            continue
        saliency = norms[slot.head] * np.abs(slot.key)
        kept = np.zeros(40, dtype=bool)
        if isinstance(how, Think):
            kept = masks[slot.head]
        elif isinstance(how, Spark | SparkP | SparkG):
            kept[top(saliency, kept_by(how, saliency))] = True
        assert_symmetric(slot.key[kept], slot.found_key[kept], 4, dtype)
        np.testing.assert_array_equal(slot.found_key[~kept], whole.found_key[~kept])
        assert_symmetric(slot.value, slot.found_value, 4, dtype)


def assert_same_tensors(found: Any, expected: Any) -> None:
    """Two blocks hold the same bytes."""
    assert type(found) is type(expected)
    if isinstance(expected, Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same_tensors(one, other)
    elif hasattr(expected, "__dataclass_fields__"):
        for name in expected.__dataclass_fields__:
            assert_same_tensors(getattr(found, name), getattr(expected, name))
    else:
        assert found == expected


def again(store: Store, block: Block, view: LayerView, selection: Selection, window: int) -> Block:
    """What the slots of a block are packed to once they were recovered in the model's dtype."""
    keys, values = view.keys.clone(), view.values.clone()
    for slot in slots_of(block, view, selection, window):
        keys[slot.head, slot.position] = torch.from_numpy(slot.found_key).to(keys.dtype)
        values[slot.head, slot.position] = torch.from_numpy(slot.found_value).to(values.dtype)
    return store.pack(view._replace(keys=keys, values=values), selection, window, like=block)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_recovered_slots_are_quantised_to_the_same_bytes(bits: Any, dtype: torch.dtype) -> None:
    store = Packed(precision=Bits(high=bits))
    assert store.exact_again
    view, selection = layer_of(40, 24, dtype=dtype, length=300), selected([300, 211], 300)
    block = store.pack(view, selection, WINDOW)
    assert_same_tensors(again(store, block, view, selection, WINDOW), block)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", [Spark(), Spark(ratio=0.8), Spark(sign="query"), Think()])
def test_recovered_slots_give_up_the_same_channels(how: Channels, dtype: torch.dtype) -> None:
    """Norms and channels come from the block itself: the new view's queries would say otherwise."""
    store = Packed(how)
    assert store.exact_again
    view, selection = layer_of(40, 24, dtype=dtype, length=100), selected([100, 71], 100)
    block = store.pack(view, selection, WINDOW)
    other = view._replace(queries=layer_of(40, length=100, seed=77, dtype=dtype).queries)
    twice = again(store, block, other, selection, WINDOW)
    before, after = packed_in(block), packed_in(twice)
    assert torch.equal(after.keys.entries.data, before.keys.entries.data)
    if before.keys.pruned is None or after.keys.pruned is None:
        assert_same_tensors(twice, block)
        return
    assert torch.equal(after.keys.pruned.masks, before.keys.pruned.masks)
    close = ROUNDING[dtype] if dtype == torch.float32 else 0.0
    torch.testing.assert_close(after.keys.pruned.stats, before.keys.pruned.stats, rtol=close, atol=0)
    if before.keys.pruned.signs is not None and after.keys.pruned.signs is not None:
        assert torch.equal(after.keys.pruned.signs, before.keys.pruned.signs)


def test_what_cannot_be_packed_again_says_so() -> None:
    for store in (Packed(SparkP()), Packed(SparkG()), Packed(Spark(recovery="gaussian")), Packed(precision=Kivi())):
        assert not store.exact_again
    assert Dense().exact_again


# --- bits per head -------------------------------------------------------------------------------------------------


def scores_of(values: Sequence[Sequence[float]]) -> HeadScores:
    return HeadScores(torch.tensor(values, dtype=torch.float64), "random")


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 2), (4, 8), (5, 5)])
@pytest.mark.parametrize("ties", [False, True])
def test_the_better_half_of_all_heads_gets_more_bits(shape: tuple[int, int], ties: bool) -> None:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = (3 * values).floor() + 1 if ties else values
    flat = values.flatten().tolist()
    better = sorted(range(len(flat)), key=lambda h: (-flat[h], h))[: len(flat) // 2]
    precision = Bits(high=8, low=4, scores=HeadScores(values, "random"))
    found = [width for layer in range(shape[0]) for width in precision.bits(layer, shape[1]).tolist()]
    assert found == [8 if head in better else 4 for head in range(len(flat))]


def test_heads_of_different_bits_lie_in_blocks_of_their_own() -> None:
    scores = scores_of([[0.1, 0.9, 0.2], [0.8, 0.7, 0.3]])
    view, selection = layer_of(40, heads=3, layer=0), selected([9, 24, 13], 24)
    for layer, widths in ((0, [4, 8, 4]), (1, [8, 8, 4])):
        block = Packed(precision=Bits(high=8, low=4, scores=scores)).pack(view._replace(layer=layer), selection, WINDOW)
        assert isinstance(block, Parts)
        for slot in slots_of(block, view, selection, WINDOW):
            assert_symmetric(slot.key, slot.found_key, widths[slot.head], torch.float32)
            assert_symmetric(slot.value, slot.found_value, widths[slot.head], torch.float32)


def test_sixteen_bits_are_the_numbers_as_they_are() -> None:
    scores = scores_of([[0.1, 0.9]])
    view, selection = layer_of(40), selected([9, 24], 24)
    block = Packed(precision=Bits(high=16, low=2, scores=scores)).pack(view, selection, WINDOW)
    for slot in slots_of(block, view, selection, WINDOW):
        if slot.head == 1:
            np.testing.assert_array_equal(slot.found_key, slot.key)
        else:
            assert_symmetric(slot.key, slot.found_key, 2, torch.float32)


WIDTHS = (2, 4, 8, 16)


def lost(values: Sequence[float], widths: Sequence[int]) -> float:
    """The error that MixedBits says it lowers: scores times 4^-bits."""
    return sum(max(score, 0.0) * 4.0**-width for score, width in zip(values, widths, strict=True))


@cache
def assignments(heads: int) -> np.ndarray:
    """All widths of a few heads [n, heads]."""
    return np.array(list(product(WIDTHS, repeat=heads)))


def mixed(values: Sequence[float], mean: float) -> list[int]:
    return [int(width) for width in MixedBits(mean=mean, scores=scores_of([values])).bits(0, len(values))]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=1, max_size=12).filter(any),
    st.floats(2, 16),
)
def test_mixed_bits_stay_below_their_mean_and_follow_the_scores(values: list[float], mean: float) -> None:
    widths = mixed(values, mean)
    assert set(widths) <= set(WIDTHS)
    assert sum(widths) <= mean * len(values) + 1e-6
    for (score, width), (other, narrower) in product(zip(values, widths, strict=True), repeat=2):
        assert width >= narrower or max(score, 0) <= max(other, 0)
    # What is left is too little for any further step but the one of a head that has all.
    steps = [next(wider for wider in WIDTHS if wider > width) - width for width in widths if width < 16]
    assert not steps or sum(widths) + min(steps) > mean * len(values) - 1e-6


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5), st.integers(2, 16))
def test_mixed_bits_lose_little_against_the_best_assignment(values: list[int], mean: int) -> None:
    """Greedy: the loss is below that of the best assignment under a limit that is 8 bits, the largest step, lower.

    The relaxed problem is solved exactly by steps in the order of gain per bit (the gains of a head fall), so greedy is
    optimal whenever it never had to skip a step, and otherwise misses no more than the step that did not fit.
    """
    floats = [float(value) for value in values]
    every, limit = assignments(len(values)), mean * len(values)
    found, floats = mixed(floats, mean), [value + 0.01 * max(floats) for value in floats]
    errors = (np.array(floats) * 4.0**-every).sum(1)
    best = errors[every.sum(1) <= limit].min()
    assert lost(floats, found) >= best - 1e-12
    spent = sum(found)
    # Optimal among all that spend no more than it did.
    if spent == limit:
        used = errors[every.sum(1) <= spent].min()
        assert lost(floats, found) <= used * (1 + 1e-6) + max(floats) * 4.0**-2
    tighter = every.sum(1) <= limit - 8
    if tighter.any():
        assert lost(floats, found) <= errors[tighter].min() * (1 + 1e-6) + 1e-6 * max(floats)


def test_mixed_bits_of_known_scores() -> None:
    assert mixed([1, 1, 1, 1], 4) == [4, 4, 4, 4]
    assert mixed([1, 1, 1, 1], 5) == [8, 4, 4, 4]
    assert mixed([1, 2, 1, 1], 5) == [4, 8, 4, 4]
    assert mixed([1000, 1, 1, 1], 5.5) == [8, 4, 4, 4]
    assert mixed([100_000, 1, 1, 1], 5.5) == [8, 4, 4, 4]
    assert mixed([1, 1, -1, -1], 4) == [8, 4, 2, 2]
    assert mixed([1, 1], 2) == [2, 2]
    assert mixed([1, 1], 16) == [16, 16]


# --- KIVI ----------------------------------------------------------------------------------------------------------


def assert_asymmetric(numbers: np.ndarray, found: np.ndarray, bits: int, dtype: torch.dtype) -> None:
    """A group: zero is its least number, scale a (2^b - 1)-th of its range, both in the model's dtype."""
    zero = rounded(float(numbers.min()), dtype)
    scale = rounded((float(numbers.max()) - zero) / (2**bits - 1), dtype)
    if scale == 0:
        np.testing.assert_array_equal(found, zero)
        return
    integers = (found - zero) / scale
    np.testing.assert_allclose(integers, integers.round(), atol=5e-3)
    assert integers.min() > -0.01
    assert integers.max() < 2**bits - 1 + 0.01
    assert (np.abs(integers - ((numbers - zero) / scale).clip(0, 2**bits - 1)) <= 0.5 + 5e-3).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("dims", DIMS)
def test_kivi_scales_keys_per_channel_and_values_per_slot(dims: tuple[int, int], bits: Any, dtype: torch.dtype) -> None:
    view, selection = layer_of(*dims, dtype=dtype, length=120, heads=3), selected([70, 117, 20], 120)
    view.keys[0, :, 3] = 0.25  # a channel without any range, and a slot
    view.values[1, :, :] = -0.5
    block = Packed(precision=Kivi(width=bits)).pack(view, selection, WINDOW)
    packed = [(count - WINDOW) // 32 * 32 for count in (70, 117, 20)]
    assert packed_in(block).offsets.diff().tolist() == packed == [64, 96, 0]
    slots = list(slots_of(block, view, selection, WINDOW))
    for head, (start, stop) in enumerate(pairwise(selection.offsets.tolist())):
        own = slots[start:stop]
        for slot in own[packed[head] :]:
            np.testing.assert_array_equal(slot.found_key, slot.key)
            np.testing.assert_array_equal(slot.found_value, slot.value)
        for first in range(0, packed[head], 32):
            keys = np.stack([slot.key for slot in own[first : first + 32]])
            found = np.stack([slot.found_key for slot in own[first : first + 32]])
            for channel in range(dims[0]):
                assert_asymmetric(keys[:, channel], found[:, channel], bits, dtype)
        for slot, first in product(own[: packed[head]], range(0, dims[1], 32)):
            near = slice(first, min(first + 32, dims[1]))
            assert_asymmetric(slot.value[near], slot.found_value[near], bits, dtype)


def test_kivi_bytes() -> None:
    view, selection = layer_of(128, 96, dtype=torch.bfloat16, length=80), selected([80, 45], 80)
    block = Packed(precision=Kivi(width=4)).pack(view, selection, WINDOW)
    kinds = packed_in(block).bytes()
    slots = 64 + 32
    assert kinds["keys"] == slots * 64
    assert kinds["values"] == slots * 48
    assert kinds["scales"] == slots // 32 * 128 * 2 * 2 + slots * 3 * 2 * 2
    assert block.bytes()["keys"] - kinds["keys"] == (125 - slots) * 256
    assert packed_in(Packed(Think(), Kivi()).pack(view, selection, WINDOW)).bytes()["keys"] == slots * 32


def test_kivi_is_refused_after_spark() -> None:
    for how in (Spark(), SparkP(), SparkG()):
        with pytest.raises(MethodError, match="combine spark with bits, or kivi with think"):
            Packed(how, Kivi())


# --- hard numbers and odd sizes --------------------------------------------------------------------------------------

ALL: dict[str, Packed] = {
    **{name: store for name, store in STORES.items() if isinstance(store, Packed) and not by_scores(store)},
    "8 bits": Packed(precision=Bits(high=8)),
    "spark-p and 2 bits": Packed(SparkP(share=0.9, recent="pruned"), Bits(high=2)),
    "think and 8 bits": Packed(Think(ratio=0.7), Bits(high=8)),
}


@pytest.mark.parametrize("kind", ["keys", "values"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", ALL)
def test_what_is_not_finite_is_refused_by_its_layer(name: str, bad: float, kind: str) -> None:
    view, selection = layer_of(length=60, layer=3), selected([50, 60], 60)
    getattr(view, kind)[1, selection.positions[55], 4] = bad
    with pytest.raises(ModelError, match=f"The {kind} of layer 3 contain infinities or NaN"):
        ALL[name].pack(view, selection, WINDOW)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_rows_without_anything_in_them(name: str, dtype: torch.dtype) -> None:
    """All zeros come back as zeros; rows of one number as that number, as exactly as the scales are."""
    view, selection = layer_of(40, 24, length=70, dtype=dtype), selected([60, 70], 70)
    view.keys[0], view.values[0] = 0, 0
    view.keys[1], view.values[1] = 0.7, -0.3
    block = ALL[name].pack(view, selection, WINDOW)
    for slot in slots_of(block, view, selection, WINDOW):
        assert np.isfinite(slot.found_key).all()
        if slot.head == 0:
            assert not slot.found_key.any()
            assert not slot.found_value.any()
        else:
            np.testing.assert_allclose(slot.found_value, -0.3, rtol=2**-7)


def test_queries_that_ask_for_nothing() -> None:
    """No channel is more salient than its size says, and none recovers to infinity."""
    view, selection = layer_of(40, length=30), selected([30, 30], 30)
    view.queries[:2] = 0
    view.queries[2:, :, ::2] = 0
    for how in (Spark(), Spark(sign="query", norm="mean"), SparkP(share=0.9), SparkG()):
        keys, _ = Packed(how).pack(view, selection, 0).recover(torch.arange(60))
        assert bool(keys.isfinite().all())
    spark = Packed(Spark()).pack(view, selection, 0)
    for slot in list(slots_of(spark, view, selection, 0))[:30]:
        np.testing.assert_array_equal(slot.found_key[(kept := top(np.abs(slot.key), 20))], slot.key[kept])


@pytest.mark.parametrize("name", ALL)
def test_large_numbers_in_half_precision(name: str) -> None:
    """Up to what float16 holds: nothing becomes infinite on the way."""
    view, selection = layer_of(40, 24, length=70, dtype=torch.float16), selected([60, 70], 70)
    generator = torch.Generator().manual_seed(2)
    keys, values = (
        (6e4 * (2 * torch.rand(each.shape, generator=generator) - 1)).half() for each in (view.keys, view.values)
    )
    view = view._replace(keys=keys, values=values, queries=0.05 * view.queries)
    block = ALL[name].pack(view, selection, WINDOW)
    for slot in slots_of(block, view, selection, WINDOW):
        assert np.isfinite(slot.found_key).all()
        assert np.isfinite(slot.found_value).all()
        assert np.abs(slot.found_value).max() <= 6.6e4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_numbers_that_are_hardly_there(name: str, dtype: torch.dtype) -> None:
    """Subnormal ones: no NaN, and no error beyond the range of the row, as scales are subnormal, too."""
    view, selection = layer_of(40, 24, length=70, dtype=dtype), selected([60, 70], 70)
    tiny = {torch.float32: 1e-39, torch.bfloat16: 1e-39, torch.float16: 1e-6}[dtype]
    view = view._replace(keys=(view.keys.float() * tiny).to(dtype), values=(view.values.float() * tiny).to(dtype))
    view.keys[:, :, 3], view.values[:, :, 3] = 0, 0
    block = ALL[name].pack(view, selection, WINDOW)
    for slot in slots_of(block, view, selection, WINDOW):
        assert np.isfinite(slot.found_key).all()
        assert np.abs(slot.found_value - slot.value).max() <= np.ptp(slot.value) * 1.5


@pytest.mark.parametrize("counts", [[1, 0, 1], [0, 3, 40], [2, 1, 3], [40, 40, 40]])
@pytest.mark.parametrize("window", [0, 1, 4, 50])
@pytest.mark.parametrize("name", ALL)
def test_heads_of_any_number_of_slots(name: str, counts: list[int], window: int) -> None:
    """Empty heads, heads of one slot, windows longer than what is kept: positions keep their order, bytes their sum."""
    view, selection = layer_of(20, 36, heads=3, length=40), selected(counts, 40, window)
    block = ALL[name].pack(view, selection, window)
    assert torch.equal(block.offsets, selection.offsets)
    assert ALL[name].bytes(view, selection, window) == bytes_held(block, selection)
    for slot in slots_of(block, view, selection, window):
        assert np.corrcoef(slot.found_value, slot.value)[0, 1] > 0.3, "this is another slot's value"


def test_a_layer_that_keeps_nothing() -> None:
    view, nothing = layer_of(), selected([0, 0], 24)
    assert Packed(Spark()).bytes(view, nothing, 0) == bytes_held(Packed(Spark()).pack(view, nothing, 0), nothing)


def test_no_slots_recover_to_nothing() -> None:
    """As where some slots of a prefix are asked for that all lie in one of its parts."""
    view, selection = layer_of(), selected([20, 24], 24)
    block = Packed(Spark()).pack(view, selection, WINDOW)
    recent = torch.arange(16, 20)
    keys, _ = block.recover(recent)
    assert torch.equal(keys, view.keys[0, selection.positions[recent]])


def test_starts_of_few_slots_hold_no_more_than_they_show() -> None:
    view, selection = layer_of(), selected([10, 10], 24)
    pruned = packed_in(Packed(SparkP(share=0.9)).pack(view, selection, 0)).keys.pruned
    assert pruned is not None
    assert pruned.starts is not None
    assert pruned.starts.untyped_storage().nbytes() == pruned.starts.nbytes


def test_large_saliencies_in_half_precision() -> None:
    """Keys and queries that float16 holds, whose products it does not."""
    view, selection = layer_of(40, dtype=torch.float16), selected([20, 24], 24)
    view = view._replace(keys=1000 * view.keys, queries=100 * view.queries)
    for how in (Spark(), Spark(recovery="gaussian"), SparkP(share=0.5)):
        keys, _ = Packed(how).pack(view, selection, 0).recover(torch.arange(44))
        assert bool(keys.isfinite().all())


# --- bytes ---------------------------------------------------------------------------------------------------------

CHANNELS: list[Channels] = [
    AllChannels(),
    Spark(ratio=0.5),
    Spark(ratio=0.8, sign="none", values=0.5),
    Spark(ratio=0.3, recovery="gaussian", recent="pruned"),
    Spark(ratio=0.02),
    Think(ratio=0.3),
    SparkP(share=0.9),
    SparkG(groups=5, recent="pruned"),
]
PRECISIONS: list[Precision] = [
    AsIs(),
    Bits(high=8),
    Bits(high=4),
    Bits(high=8, low=2, scores=HEAD_SCORES),
    Bits(high=16, low=4, scores=HEAD_SCORES),
    MixedBits(mean=6, scores=HEAD_SCORES),
    Kivi(width=4),
    Kivi(width=8),
]
TOGETHER = [(c, p) for c, p in product(CHANNELS, PRECISIONS) if not (c.per_slot and isinstance(p, Kivi))]


@st.composite
def held_layers(draw: st.DrawFn) -> tuple[LayerView, Selection, int]:
    """A layer of four heads, what stays of it, and its window."""
    length, window = draw(st.integers(1, 80)), draw(st.integers(0, 10))
    counts = draw(st.lists(st.integers(0, length), min_size=4, max_size=4).filter(any))
    dims = draw(st.sampled_from([(20, 20), (40, 12), (64, 96)]))
    dtype = draw(st.sampled_from(DTYPES))
    view = layer_of(*dims, length, heads=4, group=1, dtype=dtype, layer=draw(st.integers(0, 1)))
    return view, selected(counts, length, window, seed=draw(st.integers(0, 99))), min(window, length)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(TOGETHER), held_layers())
def test_bytes_are_those_of_what_is_packed(
    parts: tuple[Channels, Precision], held: tuple[LayerView, Selection, int]
) -> None:
    view, selection, window = held
    store = Packed(*parts)
    assert store.bytes(view, selection, window) == bytes_held(store.pack(view, selection, window), selection)
    assert Dense().bytes(view, selection, window) == bytes_held(Dense().pack(view, selection, window), selection)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.sampled_from([(c, p) for c, p in TOGETHER if not c.varies]),
    st.integers(0, 8),
    st.integers(1, 70),
    st.sampled_from([(20, 20), (40, 12), (64, 96)]),
    st.sampled_from(DTYPES),
    st.integers(0, 1),
)
def test_a_layer_costs_what_is_packed(
    parts: tuple[Channels, Precision],
    window: int,
    older: int,
    dims: tuple[int, int],
    dtype: torch.dtype,
    layer: int,
) -> None:
    """Where all heads hold the same number of slots, in groups that are full."""
    store = Packed(*parts)
    older = -(-older // 32) * 32 if isinstance(parts[1], Kivi) else older
    view = layer_of(*dims, older + window, heads=4, group=1, dtype=dtype, layer=layer)
    for each in (store, Dense()):
        selection = selected([older + window] * 4, older + window, window)
        cost = each.cost(LayerShape(layer, 4, *dims, dtype.itemsize, window))
        held = bytes_held(each.pack(view, selection, window), selection)
        assert cost.fixed + 4 * (older + window) * cost.slot == pytest.approx(held, rel=1e-9)


def test_packed_slots_share_no_memory_with_the_layer() -> None:
    view, selection = layer_of(40, length=70), selected([60, 70], 70)
    for store in (*ALL.values(), Dense()):
        block = store.pack(view, selection, WINDOW)
        before = [each.clone() for each in block.recover(torch.arange(130))]
        view.keys.add_(1)
        view.values.add_(1)
        for found, expected in zip(block.recover(torch.arange(130)), before, strict=True):
            assert torch.equal(found, expected)


def test_a_layer_of_dense_slots_only_is_one_dense_block() -> None:
    view, selection = layer_of(length=20), selected([3, 4], 20)
    assert isinstance(Packed(Spark()).pack(view, selection, WINDOW), PrefixBlock)
    assert isinstance(Packed(precision=Kivi()).pack(view, selection, WINDOW), PrefixBlock)
