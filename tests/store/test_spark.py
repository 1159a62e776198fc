"""SPARK against the paper, in plain float64 loops.

Nothing here asks `winnow.store` how to pack: expected channels, statistics and signs are worked out from the keys,
values and queries alone, and compared with what a block recovers to and with its bytes.
"""

from __future__ import annotations

import math
import warnings
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from support.channel_definitions import (
    kept_by,
    kept_of_segments,
    norms_of,
    query_signs,
    saliency_of,
    segments_of,
    top,
)
from support.dense_attention import DTYPES
from support.packed_slots import DIMS, ROUNDING, WINDOW, layer_of, packed_in, selected, slots_of
from winnow.select import Selection
from winnow.store import Dense, Packed, Spark, SparkG, SparkP, dearer
from winnow.view import LayerView

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_spark(view: LayerView, how: Spark | SparkP | SparkG, selection: Selection, window: int) -> list[int]:
    """Every key is what Eq. 7, 8 and 11 make of it; returns the channels that each pruned slot kept."""
    block = Packed(how).pack(view, selection, window)
    norms = norms_of(view, how.queries, how.norm)
    asked = query_signs(view, how.queries)
    root = np.sqrt if how.saliency == "squared" else np.asarray
    segments = segments_of(how.groups, view, root(norms)) if isinstance(how, SparkG) and how.by == "segments" else None
    # Means near zero are only as exact as their sum.
    close = max(ROUNDING[view.keys.dtype], 1e-4 if how.norm == "mean" else 0)
    counts = []
    for slot in slots_of(block, view, selection, window):
        if slot.recent and how.recent == "dense":
            np.testing.assert_array_equal(slot.found_key, slot.key)
            continue
        saliency = saliency_of(how, norms[slot.head], slot.key)
        if segments is not None:
            assert isinstance(how, SparkG)
            kept = kept_of_segments(how, saliency, segments[slot.head])
        else:
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
            sizes = {
                "degenerate": root(saliency[gone].mean() / norms[slot.head]),
                "constant": np.full(norms.shape[1], how.fill),
                "none": np.zeros(norms.shape[1]),
            }
            expected = signs[how.sign] * sizes[how.recovery]
            np.testing.assert_allclose(slot.found_key[gone], expected[gone], rtol=close)
    return counts


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("sign", ["stored", "query", "none"])
@pytest.mark.parametrize("norm", ["rms", "mean", "group-mean"])
@pytest.mark.parametrize("saliency", ["linear", "squared"])
def test_spark_keeps_the_most_salient_channels_and_recovers_the_others(
    dims: tuple[int, int], sign: Any, norm: Any, saliency: Any
) -> None:
    view = layer_of(*dims, seed=dims[0])
    selection = selected([9, 13], 24)
    for ratio in (0.3, 0.5, 0.8):
        how = Spark(ratio=ratio, sign=sign, norm=norm, saliency=saliency, queries=5)
        counts = assert_spark(view, how, selection, WINDOW)
        assert counts == [dims[0] - math.floor(ratio * dims[0])] * (22 - 2 * WINDOW)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recent", ["dense", "pruned"])
def test_spark_leaves_the_window_as_it_is_or_prunes_it(dtype: torch.dtype, recent: Any) -> None:
    view, selection = layer_of(40, 24, dtype=dtype), selected([6, 10], 24)
    pruned = assert_spark(view, Spark(recent=recent), selection, WINDOW)
    assert len(pruned) == (16 if recent == "pruned" else 8)


@pytest.mark.parametrize("sign", ["stored", "query", "none"])
@pytest.mark.parametrize("recovery", ["constant", "none"])
def test_pruned_channels_may_be_a_constant_or_nothing(recovery: Any, sign: Any) -> None:
    """Fig. 2c of the paper: 0.01 for what is gone, or no recovery."""
    view, selection = layer_of(40, 24, dtype=torch.bfloat16), selected([9, 13], 24)
    for how in (Spark(recovery=recovery, sign=sign), Spark(ratio=0.8, recovery=recovery, sign=sign, fill=0.25)):
        assert_spark(view, how, selection, WINDOW)
        pruned = packed_in(Packed(how).pack(view, selection, WINDOW)).keys.pruned
        assert pruned is not None
        assert pruned.stats.shape == (14, 0)
        assert (pruned.signs is None) == (recovery == "none" or sign != "stored")
        assert (pruned.inverse_norms is None) == (recovery == "none")
    assert_spark(view, SparkP(share=0.9, recovery=recovery, sign=sign), selection, WINDOW)


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


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("saliency", ["linear", "squared"])
def test_spark_p_keeps_the_fewest_channels_that_reach_the_share(
    dims: tuple[int, int], share: float, saliency: Any
) -> None:
    view, selection = layer_of(*dims, seed=3), selected([9, 0], 24)
    counts = assert_spark(view, SparkP(share=share, saliency=saliency), selection, WINDOW)
    assert len(set(counts)) > 1 or share == 0.99
    for sign in ("query", "none"):
        assert assert_spark(view, SparkP(share=share, sign=sign, saliency=saliency), selection, WINDOW) == counts


def test_squared_saliency_needs_fewer_channels() -> None:
    view, selection = layer_of(128, length=60), selected([60, 60], 60, 0)
    linear, squared = (
        sum(assert_spark(view, SparkP(share=0.99, saliency=kind), selection, 0)) / (120 * 128)
        for kind in ("linear", "squared")
    )
    assert squared < 0.8 < 0.85 < linear
    kinds = packed_in(Packed(SparkP(share=0.99, saliency="squared")).pack(view, selection, 0)).bytes()
    assert kinds["keys"] + kinds["masks"] + kinds["signs"] + kinds["statistics"] < 120 * 128 * 4


@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("groups", [4, 5])
@pytest.mark.parametrize("saliency", ["linear", "squared"])
def test_spark_g_as_published_gives_ratios_by_the_channels_that_slots_need(
    saliency: Any, groups: int, share: float
) -> None:
    for dim in (9, 20, 80, 128):
        view, selection = layer_of(dim, length=60), selected([50, 60], 60)
        steep = torch.linspace(0, 0.5, 60)[None, :, None] * torch.arange(dim)
        view = view._replace(keys=view.keys * torch.exp(-steep))
        assert_spark(view, SparkG(groups=groups, share=share, by="published", saliency=saliency), selection, WINDOW)


def test_places_of_the_published_groups_are_those_of_the_code() -> None:
    """At D = 128: up to place 25, 51, 76 and 102, and beyond, 12, 38, 64, 89 and 115 channels."""
    rule = SparkG(groups=5, by="published").rule(128)
    assert rule.levels == (12, 38, 64, 89, 115)
    assert [bound - 1 for bound in rule.level_bounds()[:4]] == [25, 51, 76, 102]


@pytest.mark.parametrize("saliency", ["linear", "squared"])
@pytest.mark.parametrize("groups", [4, 5])
@pytest.mark.parametrize("dims", [(3, 3), *DIMS])
def test_spark_g_of_segments_prunes_more_of_what_a_head_uses_less(
    dims: tuple[int, int], groups: int, saliency: Any
) -> None:
    view, selection = layer_of(*dims, seed=4), selected([9, 13], 24)
    how = SparkG(groups=groups, by="segments", saliency=saliency)
    counts = assert_spark(view, how, selection, WINDOW)
    assert set(counts) == {how.levels(dims[0])[0]}
    if dims[0] == 80:
        assert counts[0] == {4: 15 + 10 + 5 + 0, 5: 15 + 12 + 8 + 5 + 2}[groups]


def test_a_head_of_one_channel_keeps_it() -> None:
    view, selection = layer_of(1, 8), selected([9, 13], 24)
    for by in ("published", "segments", "lowest"):
        for groups in (4, 5):
            store = Packed(SparkG(groups=groups, by=by))  # type: ignore[arg-type]
            keys, _ = store.pack(view, selection, WINDOW).recover(torch.arange(22))
            assert torch.equal(keys[:5, 0], view.keys[0, selection.positions[:5], 0])


@pytest.mark.parametrize("groups", [4, 5])
@pytest.mark.parametrize("share", [0.3, 0.8, 0.97])
def test_spark_g_gives_each_slot_the_lowest_level_that_reaches_the_share(groups: int, share: float) -> None:
    """Keys of all kinds of concentration, so that every level is somebody's."""
    view, selection = layer_of(40, length=60), selected([50, 60], 60)
    steep = torch.linspace(0, 0.5, 60)[None, :, None] * torch.arange(40.0)
    view = view._replace(keys=view.keys * torch.exp(-steep))
    how = SparkG(groups=groups, share=share, by="lowest", saliency="linear")
    counts = assert_spark(view, how, selection, WINDOW)
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


class Drawn(NamedTuple):
    """Every pruned entry of a long layer."""

    sizes: np.ndarray
    """w̃, what was drawn"""
    means: np.ndarray
    """μ of the slot's saliencies: all, or the pruned"""
    deviations: np.ndarray
    largest: np.ndarray


def drawn(how: Spark, of_pruned: bool, length: int = 220) -> Drawn:
    """Drawn sizes, and the moments of what the slot's saliencies were."""
    view, selection = layer_of(64, length=length, seed=5), selected([length, length], length, 0)
    block = Packed(how).pack(view, selection, 0)
    norms = norms_of(view, how.queries, how.norm)
    found = []
    for slot in slots_of(block, view, selection, 0):
        saliency = norms[slot.head] * np.abs(slot.key)
        kept = top(saliency, kept_by(how, saliency))
        gone = sorted(set(range(len(saliency))) - set(kept))
        among = saliency[gone] if of_pruned else saliency
        for j in gone:
            found.append((slot.found_key[j] * norms[slot.head, j], among.mean(), among.std(), among.max()))
    return Drawn(*np.array(found).T)


def assert_uniform(shares: np.ndarray) -> None:
    """Numbers of which every value from 0 to 1 is equally likely."""
    assert len(shares) == 2 * 220 * 32
    assert abs(shares.mean() - 0.5) < 0.01
    assert abs(shares.std() - 12**-0.5) < 0.01
    assert np.abs(np.histogram(shares, 10, (0, 1))[0] / len(shares) - 0.1).max() < 0.02


def test_gaussian_draws_are_those_of_the_pruned_up_to_the_largest() -> None:
    """Distribution functions of what was drawn are uniform: N(μ, σ²) of the pruned saliencies between 0 and c."""
    sizes, means, deviations, largest = drawn(Spark(recovery="gaussian", sign="none"), of_pruned=True)
    assert (sizes >= 0).all()
    assert (sizes <= largest * (1 + 1e-6)).all()
    below, reached, above = (
        torch.special.ndtr(torch.from_numpy((ends - means) / deviations)) for ends in (0 * sizes, sizes, largest)
    )
    assert_uniform(((reached - below) / (above - below)).numpy())


def test_exponential_draws_are_those_of_the_pruned_up_to_the_largest() -> None:
    sizes, means, _, largest = drawn(Spark(recovery="exponential", sign="none"), of_pruned=True)
    assert (sizes >= 0).all()
    assert (sizes <= largest * (1 + 1e-6)).all()
    assert_uniform(np.expm1(-sizes / means) / np.expm1(-largest / means))


def test_random_recovery_loses_less_than_none() -> None:
    """Logits of new queries, at a ratio where a draw of all saliencies would lose more than nothing at all."""
    view, selection = layer_of(128, length=120, group=4, seed=2), selected([120, 120], 120, 0)
    asking = view.queries.view(2, -1, 128)
    right = asking @ view.keys.transpose(1, 2)

    def off(recovery: Any) -> float:
        keys, _ = Packed(Spark(recovery=recovery)).pack(view, selection, 0).recover(torch.arange(240))
        return float((asking @ keys.view(2, 120, 128).transpose(1, 2) - right).norm())

    best, worst = off("degenerate"), off("none")
    assert best < off("gaussian") < worst < off("gaussian-printed")
    assert best < off("exponential") < worst < off("exponential-printed")


@pytest.mark.parametrize("recovery", ["gaussian", "exponential"])
def test_what_cannot_be_drawn_is_the_mean(recovery: Any) -> None:
    """One pruned channel, pruned channels of one size, and pruned channels that are zero."""
    view, selection = layer_of(20, length=30), selected([30, 30], 30, 0)
    flat = torch.full_like(view.keys, 0.5)
    flat[:, ::2] = 0
    for keys, ratio in ((view.keys, 0.05), (flat, 0.5), (flat * 0, 0.5)):
        changed = view._replace(keys=keys, queries=torch.ones_like(view.queries))
        mean, found = (
            Packed(Spark(ratio=ratio, recovery=way)).pack(changed, selection, 0).recover(torch.arange(60))[0]
            for way in ("degenerate", recovery)
        )
        assert bool(found.isfinite().all())
        if recovery == "gaussian" or not keys.any():
            torch.testing.assert_close(found, mean)


def test_gaussian_recovery_as_printed_has_the_moments_of_all_saliencies() -> None:
    sizes, means, deviations, _ = drawn(Spark(recovery="gaussian-printed", sign="none"), of_pruned=False)
    normal = (sizes - means) / deviations
    assert len(normal) == 2 * 220 * 32
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03
    assert abs((np.abs(normal) < 1).mean() - 0.683) < 0.02


def test_exponential_recovery_as_printed_has_the_mean_of_all_saliencies() -> None:
    sizes, means, *_ = drawn(Spark(recovery="exponential-printed", sign="none"), of_pruned=False)
    scaled = sizes / means
    assert scaled.min() >= 0
    assert abs(scaled.mean() - 1) < 0.03
    assert abs(scaled.std() - 1) < 0.06
    assert abs((scaled > 1).mean() - math.exp(-1)) < 0.02


@pytest.mark.parametrize("recovery", ["gaussian", "exponential", "gaussian-printed", "exponential-printed"])
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


@pytest.mark.parametrize(
    ("ratio", "recovery", "expected"),
    [(0.5, "degenerate", 154), (0.8, "degenerate", 83), (0.5, "gaussian", 158), (0.5, "exponential", 156)],
)
def test_bytes_of_a_key_of_128_channels(ratio: float, recovery: Any, expected: int) -> None:
    view, selection = layer_of(128, dtype=torch.bfloat16), selected([8, 17], 24, 0)
    kinds = packed_in(Packed(Spark(ratio=ratio, recovery=recovery)).pack(view, selection, 0)).bytes()
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


def test_queries_that_ask_for_nothing() -> None:
    """No channel is more salient than its size says, and none recovers to infinity."""
    view, selection = layer_of(40, length=30), selected([30, 30], 30)
    view.queries[:2] = 0
    view.queries[2:, :, ::2] = 0
    for how in (
        Spark(),
        Spark(sign="query", norm="mean"),
        Spark(norm="group-mean", saliency="squared"),
        Spark(recovery="gaussian"),
        SparkP(share=0.9),
        SparkG(),
        SparkG(by="segments"),
    ):
        keys, _ = Packed(how).pack(view, selection, 0).recover(torch.arange(60))
        assert bool(keys.isfinite().all())
    spark = Packed(Spark()).pack(view, selection, 0)
    for slot in list(slots_of(spark, view, selection, 0))[:30]:
        np.testing.assert_array_equal(slot.found_key[(kept := top(np.abs(slot.key), 20))], slot.key[kept])


def test_large_saliencies_in_half_precision() -> None:
    """Keys and queries that float16 holds, whose products it does not."""
    view, selection = layer_of(40, dtype=torch.float16), selected([20, 24], 24)
    view = view._replace(keys=1000 * view.keys, queries=100 * view.queries)
    for how in (Spark(), Spark(recovery="gaussian"), Spark(recovery="exponential-printed"), SparkP(share=0.5)):
        keys, _ = Packed(how).pack(view, selection, 0).recover(torch.arange(44))
        assert bool(keys.isfinite().all())


@pytest.fixture
def unwarned() -> None:
    dearer._warn.cache_clear()


@pytest.mark.usefixtures("unwarned")
def test_a_store_that_takes_more_than_dense_slots_says_so_once() -> None:
    view, selection = layer_of(128, dtype=torch.bfloat16, length=60), selected([60, 60], 60, 0)
    dear = Packed(SparkP(share=0.999))
    with pytest.warns(UserWarning, match=r"under SparkP\(share=0.999\) than dense"):
        dear.pack(view, selection, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dear.pack(view, selection, 0)


@pytest.mark.usefixtures("unwarned")
def test_a_look_at_few_slots_says_nothing_and_32_are_enough() -> None:
    view = layer_of(128, dtype=torch.bfloat16, length=60)
    dear = Packed(SparkP(share=0.999))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dear.pack(view, selected([16, 15], 60, 0), 0)
    with pytest.warns(UserWarning, match="than dense"):
        dear.pack(view, selected([16, 16], 60, 0), 0)


@pytest.mark.usefixtures("unwarned")
def test_what_every_head_takes_once_is_not_counted() -> None:
    view = layer_of(128, dtype=torch.bfloat16, length=4, heads=32, group=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Packed(Spark()).pack(view, selected([1] * 32, 4, 0), 0)


@pytest.mark.usefixtures("unwarned")
@pytest.mark.parametrize("how", [Spark(), Spark(ratio=0.3), Spark(recovery="gaussian"), SparkP(), SparkG()])
def test_what_saves_bytes_says_nothing(how: Spark | SparkP | SparkG) -> None:
    view, selection = layer_of(128, dtype=torch.bfloat16, length=60), selected([60, 60], 60, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Packed(how).pack(view, selection, 0)
