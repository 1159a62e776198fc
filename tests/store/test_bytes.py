"""Bytes that stores promise are those of what they pack."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.dense_attention import DTYPES
from support.packed_slots import bytes_held, layer_of, selected, slots_of
from support.stores import ALL, HEAD_SCORES
from support.turns import each_value
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
    Think,
)
from winnow.view import LayerView

pytestmark = pytest.mark.usefixtures("one_thread")
CHANNELS: list[Channels] = [
    AllChannels(),
    Spark(ratio=0.5),
    Spark(ratio=0.8, sign="none", values=0.5),
    Spark(ratio=0.3, recovery="gaussian", recent="pruned"),
    Spark(ratio=0.6, recovery="exponential", saliency="squared"),
    Spark(ratio=0.6, recovery="gaussian-printed"),
    Spark(ratio=0.4, recovery="constant"),
    Spark(ratio=0.4, recovery="none", recent="pruned"),
    SparkG(groups=4, by="segments"),
    Spark(ratio=0.02),
    Think(ratio=0.3),
    SparkP(share=0.9),
    SparkG(groups=5, recent="pruned"),
]
PRECISIONS: list[Precision] = [
    AsIs(),
    Bits(high=8),
    Bits(high=4),
    Bits(high=6),
    Bits(high=3),
    Bits(high=4, group=32),
    Bits(high=8, low=3, group=64, scores=HEAD_SCORES),
    Bits(high=8, low=2, scores=HEAD_SCORES),
    Bits(high=16, low=4, scores=HEAD_SCORES),
    MixedBits(mean=6, scores=HEAD_SCORES),
    Kivi(width=4),
    Kivi(width=8),
    Kivi(width=3),
    Bits(k=8, v=4),
    Bits(high=16, v=2),
]
OF_ALL_CHANNELS: list[Precision] = [
    Bits(high=4, rotate=True),
    Bits(k=8, v=16, center=True),
    Bits(high=2, smooth=True, center=True),
    MixedBits(mean=6, rotate=True, center=True, scores=HEAD_SCORES),
]
TOGETHER = [
    (c, p)
    for c, p in product(CHANNELS, PRECISIONS)
    if not (c.per_slot and (isinstance(p, Kivi) or p.channels_together))
]
TOGETHER += [(AllChannels(), precision) for precision in OF_ALL_CHANNELS]


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
    """Costs are exact if all heads hold the same number of slots, in groups that are full."""
    store = Packed(*parts)
    older = -(-older // 32) * 32 if isinstance(parts[1], Kivi) else older
    view = layer_of(*dims, older + window, heads=4, group=1, dtype=dtype, layer=layer)
    for each in (store, Dense()):
        selection = selected([older + window] * 4, older + window, window)
        cost = each.cost(LayerShape(layer, 4, *dims, dtype.itemsize, window))
        held = bytes_held(each.pack(view, selection, window), selection)
        assert cost.fixed + 4 * (older + window) * cost.slot == pytest.approx(held, rel=1e-9)


@pytest.mark.parametrize(
    ("sizes", "name"),
    each_value([*product([[1, 0, 1], [0, 3, 40], [2, 1, 3], [40, 40, 40]], [0, 1, 4, 50])], list(ALL)),
)
def test_heads_of_any_number_of_slots(sizes: tuple[list[int], int], name: str) -> None:
    """Empty heads, heads of one slot, windows longer than what is kept: positions keep their order, bytes their sum."""
    counts, window = sizes
    view, selection = layer_of(20, 36, heads=3, length=40), selected(counts, 40, window)
    block = ALL[name].pack(view, selection, window)
    assert torch.equal(block.offsets, selection.offsets)
    assert ALL[name].bytes(view, selection, window) == bytes_held(block, selection)
    for slot in slots_of(block, view, selection, window):
        assert np.corrcoef(slot.found_value, slot.value)[0, 1] > 0.3, "this is another slot's value"


def test_a_layer_that_keeps_nothing() -> None:
    view, nothing = layer_of(), selected([0, 0], 24)
    assert Packed(Spark()).bytes(view, nothing, 0) == bytes_held(Packed(Spark()).pack(view, nothing, 0), nothing)
