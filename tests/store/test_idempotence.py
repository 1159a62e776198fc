"""Slots recovered from a block pack to what they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.dense_attention import DTYPES
from support.packed_slots import ROUNDING, WINDOW, assert_same_tensors, layer_of, packed_in, selected, slots_of
from winnow.kernels import Block
from winnow.select import Selection
from winnow.store import Bits, Channels, Dense, Kivi, Packed, Spark, SparkG, SparkP, Store, Think
from winnow.view import LayerView

pytestmark = pytest.mark.usefixtures("one_thread")


def again(store: Store, block: Block, view: LayerView, selection: Selection, window: int) -> Block:
    """The block of the same slots, packed again after they were recovered in the model's dtype."""
    keys, values = view.keys.clone(), view.values.clone()
    for slot in slots_of(block, view, selection, window):
        keys[slot.head, slot.position] = torch.from_numpy(slot.found_key).to(keys.dtype)
        values[slot.head, slot.position] = torch.from_numpy(slot.found_value).to(values.dtype)
    return store.pack(view._replace(keys=keys, values=values), selection, window, like=block)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_recovered_slots_are_quantized_to_the_same_bytes(bits: Any, dtype: torch.dtype) -> None:
    store = Packed(precision=Bits(high=bits))
    assert store.idempotent
    view, selection = layer_of(40, 24, dtype=dtype, length=300), selected([300, 211], 300)
    block = store.pack(view, selection, WINDOW)
    assert_same_tensors(again(store, block, view, selection, WINDOW), block)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", [Spark(), Spark(ratio=0.8), Spark(sign="query"), Think()])
def test_recovered_slots_give_up_the_same_channels(how: Channels, dtype: torch.dtype) -> None:
    """Norms and channels come from the block itself: the new view's queries would say otherwise."""
    store = Packed(how)
    assert store.idempotent
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
        assert not store.idempotent
    assert Dense().idempotent
