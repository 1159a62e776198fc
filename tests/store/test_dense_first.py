"""First tokens whose slots stay dense beside packed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.packed_slots import WINDOW, layer_of, selected, slots_of
from support.stores import plain_bits
from winnow.errors import MethodError
from winnow.kernels import DenseBlock, PackedBlock, parts_of
from winnow.select import Selection
from winnow.store import AllChannels, Bits, Packed, Spark
from winnow.store.base import LayerShape

pytestmark = pytest.mark.usefixtures("one_thread")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=3),
    st.integers(0, 14),
    st.sampled_from([AllChannels(), Spark(ratio=0.5)]),
)
def test_first_tokens_are_as_they_were_and_bytes_are_known(counts: list[int], sinks: int, channels: Any) -> None:
    """No slot is there twice, whether a head has evicted first tokens or the window begins among them."""
    view, selection = layer_of(20, length=12, heads=len(counts)), selected(counts, 12)
    store = Packed(channels, plain_bits(high=2, dense_first=sinks))
    block = store.pack(view, selection, WINDOW)
    assert sum(block.bytes().values()) + 4 * len(selection.positions) == store.bytes(view, selection, WINDOW)
    for slot in slots_of(block, view, selection, WINDOW):
        if slot.position < sinks:
            np.testing.assert_array_equal(slot.found_key, slot.key)
            np.testing.assert_array_equal(slot.found_value, slot.value)
    dense = sum(len(part.keys) for part in parts_of(block) if isinstance(part, DenseBlock))
    window = WINDOW if isinstance(channels, Spark) else 0
    early = [slot for slot in slots_of(block, view, selection, WINDOW) if slot.position < max(sinks, 0)]
    recent = sum(min(count, window) for count in counts)
    assert len(early) <= dense <= len(early) + recent


def test_the_others_are_packed_as_without_them() -> None:
    view, selection = layer_of(20), selected([24, 24], 24)
    later = Selection(torch.arange(3, 24).repeat(2), torch.tensor([0, 21, 42]))
    first, packed = parts_of(Packed(precision=Bits(high=4, dense_first=3)).pack(view, selection, WINDOW))
    alone = Packed(precision=Bits(high=4)).pack(view, later, WINDOW)
    assert isinstance(first, DenseBlock)
    assert isinstance(packed, PackedBlock)
    assert isinstance(alone, PackedBlock)
    assert torch.equal(first.keys[:3], view.keys[0, :3])
    assert torch.equal(packed.keys.entries.data, alone.keys.entries.data)
    assert torch.equal(packed.values.entries.data, alone.values.entries.data)


def test_first_tokens_are_known_by_their_positions_in_a_fold() -> None:
    """The first columns of a row that was compressed before need not be the first tokens."""
    view, selection = layer_of(20, length=6), selected([6, 6], 6)
    view = view._replace(positions=torch.tensor([[0, 1, 5, 7, 8, 9], [3, 4, 5, 7, 8, 9]]))
    first, packed = parts_of(Packed(precision=Bits(high=4, dense_first=2)).pack(view, selection, WINDOW))
    assert first.offsets.tolist() == [0, 2, 2]
    assert packed.offsets.tolist() == [0, 4, 10]


def test_the_cost_of_a_layer_is_exact_where_first_tokens_stay() -> None:
    view, selection = layer_of(20), selected([24, 24], 24)
    store = Packed(precision=Bits(high=4, dense_first=3))
    cost = store.cost(LayerShape(0, 2, 20, 20, view.keys.element_size(), WINDOW))
    assert cost.fixed + cost.slot * 48 == store.bytes(view, selection, WINDOW)


@pytest.mark.parametrize("sinks", ["-1", "0.5", "true"])
def test_numbers_of_tokens_are_checked(sinks: str) -> None:
    with pytest.raises(MethodError, match="dense_first must be a whole number of at least 0"):
        winnow.method(f"full+bits(4, dense_first={sinks})")
