"""CoKV's quantizer, KIVI and bits per head, against their definitions in float64."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.channel_definitions import kept_by, norms_of, saliency_of, think_channels, top
from support.dense_attention import DTYPES
from support.packed_slots import DIMS, ROUNDING, WINDOW, layer_of, packed_in, selected, slots_of
from support.quantizers import assert_asymmetric, assert_symmetric
from support.stores import plain_bits, scores_of
from support.turns import each_value
from winnow.errors import MethodError
from winnow.heads import HeadScores
from winnow.kernels import PackedBlock
from winnow.store import Bits, Channels, Kivi, MixedBits, Packed, Spark, SparkG, SparkP, Think
from winnow.store.precision import _climb

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [8, 6, 4, 3, 2])
@pytest.mark.parametrize("dims", DIMS)
def test_bits_are_the_papers_quantizer(dims: tuple[int, int], bits: Any, dtype: torch.dtype) -> None:
    view, selection = layer_of(*dims, dtype=dtype, seed=bits), selected([9, 24], 24)
    block = Packed(precision=plain_bits(high=bits)).pack(view, selection, WINDOW)
    assert isinstance(block, PackedBlock), "the window is written in bits, too"
    for slot in slots_of(block, view, selection, WINDOW):
        assert_symmetric(slot.key, slot.found_key, bits, dtype)
        assert_symmetric(slot.value, slot.found_value, bits, dtype)
        step = np.abs(slot.key).max() / max(1, 2 ** (bits - 1) - 1)
        assert np.abs(slot.found_key - slot.key).max() <= step * (0.5 + 2 * ROUNDING[dtype])


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
    block = Packed(how, plain_bits(high=4)).pack(view, selection, WINDOW)
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
        kept = np.zeros(40, dtype=bool)
        if isinstance(how, Think):
            kept = masks[slot.head]
        elif isinstance(how, Spark | SparkP | SparkG):
            saliency = saliency_of(how, norms[slot.head], slot.key)
            kept[top(saliency, kept_by(how, saliency))] = True
        assert_symmetric(slot.key[kept], slot.found_key[kept], 4, dtype)
        np.testing.assert_array_equal(slot.found_key[~kept], whole.found_key[~kept])
        assert_symmetric(slot.value, slot.found_value, 4, dtype)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 2), (4, 8), (5, 5)])
@pytest.mark.parametrize("ties", [False, True])
def test_the_better_half_of_all_heads_gets_more_bits(shape: tuple[int, int], ties: bool) -> None:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = (3 * values).floor() + 1 if ties else values
    flat = values.flatten().tolist()
    better = sorted(range(len(flat)), key=lambda h: (-flat[h], h))[: len(flat) // 2]
    precision = plain_bits(high=8, low=4, scores=HeadScores(values, "random"))
    found = [width for layer in range(shape[0]) for width in precision.bits(layer, shape[1]).tolist()]
    assert found == [8 if head in better else 4 for head in range(len(flat))]


def test_sixteen_bits_are_the_numbers_as_they_are() -> None:
    scores = scores_of([[0.1, 0.9]])
    view, selection = layer_of(40), selected([9, 24], 24)
    block = Packed(precision=plain_bits(high=16, low=2, scores=scores)).pack(view, selection, WINDOW)
    for slot in slots_of(block, view, selection, WINDOW):
        if slot.head == 1:
            np.testing.assert_array_equal(slot.found_key, slot.key)
        else:
            assert_symmetric(slot.key, slot.found_key, 2, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bits", "group"), [(8, 32), (6, 64), (4, 32), (4, 64), (3, 32), (2, 64)])
@pytest.mark.parametrize("dims", DIMS)
def test_neighboring_channels_share_a_scale(dims: tuple[int, int], bits: int, group: int, dtype: torch.dtype) -> None:
    view, selection = layer_of(*dims, dtype=dtype, seed=bits), selected([9, 24], 24)
    view.keys[0, 3], view.values[1, :, :7] = 0, 0
    block = Packed(precision=plain_bits(high=bits, group=group)).pack(view, selection, WINDOW)
    scales = block.bytes()["scales"]
    assert scales == 33 * sum(-(-dim // group) for dim in dims) * dtype.itemsize
    for slot in slots_of(block, view, selection, WINDOW):
        for numbers, found in ((slot.key, slot.found_key), (slot.value, slot.found_value)):
            for first in range(0, len(numbers), group):
                near = slice(first, first + group)
                assert_symmetric(numbers[near], found[near], bits, dtype)


def test_a_group_of_kept_channels_shares_a_scale() -> None:
    view, selection = layer_of(96, 64), selected([9, 24], 24)
    block = Packed(Think(ratio=0.25), Bits(high=4, group=32)).pack(view, selection, WINDOW)
    channels = think_channels(view, selection, 0.25, 32)
    for slot in slots_of(block, view, selection, WINDOW):
        if slot.recent:
            continue
        kept = sorted(channels[slot.head])
        assert len(kept) == 72
        for first in range(0, 72, 32):
            near = kept[first : first + 32]
            assert_symmetric(slot.key[near], slot.found_key[near], 4, torch.float32)


def blocks_of_llama_cpp(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Numbers as llama.cpp's q8_0 and q4_0 keep them, in blocks of 32 with a scale in float16.

    q8_0 divides by max|x| / 127; q4_0 by the number of the largest size, with its sign, over -8.
    """
    found = np.zeros_like(numbers)
    for index in np.ndindex(len(numbers), numbers.shape[1] // 32):
        place = (index[0], slice(32 * index[1], 32 * index[1] + 32))
        largest = max(numbers[place], key=abs)
        scale = abs(largest) / 127 if bits == 8 else largest / -8
        integers = np.round(numbers[place] / scale).clip(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        found[place] = float(np.float16(scale)) * integers
    return found


def test_eight_bits_in_groups_of_32_are_as_good_as_q8_0() -> None:
    """And four bits all but as good as q4_0, which has one level more: a step of 1/8 of the largest, not 1/7."""
    view, selection = layer_of(128, dtype=torch.float16, length=80), selected([80, 75], 80)
    for bits, worst in ((8, 1.01), (4, 8 / 7)):
        block = Packed(precision=plain_bits(high=bits, group=32)).pack(view, selection, WINDOW)
        slots = list(slots_of(block, view, selection, WINDOW))
        keys = np.stack([slot.key for slot in slots])
        error = np.sqrt(np.mean((np.stack([slot.found_key for slot in slots]) - keys) ** 2))
        theirs = np.sqrt(np.mean((blocks_of_llama_cpp(keys, bits) - keys) ** 2))
        assert theirs * 0.95 < error < theirs * worst
        assert block.bytes()["keys"] + block.bytes()["scales"] / 2 == 155 * 4 * (32 * bits // 8 + 2)


def test_groups_of_channels_need_the_same_channels_in_every_slot() -> None:
    for how in (Spark(), SparkP(), SparkG()):
        with pytest.raises(MethodError, match="leave group out, or combine it with think"):
            Packed(how, Bits(high=4, group=32))
    with pytest.raises(MethodError, match="group must be one of 0, 32, 64, not 16"):
        Bits(high=4, group=16)
    with pytest.raises(MethodError, match="high must be one of 16, 8, 6, 4, 3, 2, not 5"):
        Bits(high=5)


WIDTHS = (2, 3, 4, 6, 8, 16)


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
    assert mixed([1, 1, 1, 1], 5) == [6, 6, 4, 4]
    assert mixed([1, 2, 1, 1], 4.5) == [4, 6, 4, 4]
    assert mixed([1000, 1, 1, 1], 5.5) == [8, 6, 4, 4]
    assert mixed([100_000, 1, 1, 1], 5) == [8, 4, 4, 4]
    assert mixed([1, 1, -1, -1], 4) == [6, 6, 2, 2]
    assert mixed([1, 1, -1, -1], 2.5) == [3, 3, 2, 2]
    assert mixed([1, 1], 2) == [2, 2]
    assert mixed([1, 1], 16) == [16, 16]


@pytest.mark.parametrize(("case", "dtype"), each_value([*product(DIMS, [8, 6, 4, 3, 2])], DTYPES))
def test_kivi_scales_keys_per_channel_and_values_per_slot(
    case: tuple[tuple[int, int], Any], dtype: torch.dtype
) -> None:
    dims, bits = case
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


def test_wider_steps_count_by_the_bit() -> None:
    """Two bits more of the one head are worth more than one of the other, but not twice as much."""
    weights = torch.tensor([1.0, 4.0], dtype=torch.float64)
    assert _climb(weights, 4).tolist() == [4, 4]
    assert _climb(weights, 5).tolist() == [4, 4]
    assert _climb(weights, 6).tolist() == [4, 6]


def test_heads_of_no_score_get_bits_before_others_get_them_all() -> None:
    """They weigh a hundredth of the best one."""
    assert mixed([1.0, 0.0], 9) == [8, 8]
    assert mixed([1.0, 0.0], 6) == [8, 4]


def test_a_mean_is_reached_as_it_is_written() -> None:
    """0.3 of ten heads are three bits, though 2.3 - 2 is a little less in binary."""
    scores = HeadScores(torch.ones(1, 10), "random")
    for mean, bits in ((2.3, 23), (2.7, 27), (3.0, 30)):
        assert int(MixedBits(mean, scores=scores).table().sum()) == bits
