"""KIVI's residual: last slots of every head that stay dense beside packed groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.families import build, prompt
from support.packed_slots import layer_of, selected, slots_of
from support.quantizers import assert_asymmetric
from winnow.errors import BudgetError, MethodError
from winnow.kernels import DenseBlock, PackedBlock, parts_of
from winnow.store import AllChannels, Channels, Kivi, LayerShape, Packed, Think

pytestmark = pytest.mark.usefixtures("one_thread")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 110), min_size=1, max_size=3).filter(any),
    st.integers(0, 9),
    st.integers(0, 80),
    st.sampled_from([AllChannels(), Think(ratio=0.5)]),
)
def test_the_last_slots_stay_and_whole_groups_before_them_are_packed(
    counts: list[int], window: int, residual: int, channels: Channels
) -> None:
    """The window is part of the residual, whichever is longer; what fills no group stays with them."""
    view, selection = layer_of(20, 36, 110, heads=len(counts)), selected(counts, 110, window)
    store = Packed(channels, Kivi(residual=residual))
    block = store.pack(view, selection, window)
    assert sum(block.bytes().values()) + 4 * len(selection.positions) == store.bytes(view, selection, window)
    assert torch.equal(block.offsets, selection.offsets)
    whole = [max(0, count - max(window, residual)) // 32 * 32 for count in counts]
    packed = [part for part in parts_of(block) if isinstance(part, PackedBlock)]
    assert sum(part.slots for part in packed) == sum(whole)
    dense = [part for part in parts_of(block) if isinstance(part, DenseBlock)]
    assert sum(len(part.keys) for part in dense) == sum(counts) - sum(whole)
    slots = list(slots_of(block, view, selection, window))
    for head, stays in enumerate(whole):
        mine = [slot for slot in slots if slot.head == head]
        for slot in mine[stays:]:
            np.testing.assert_array_equal(slot.found_key, slot.key)
            np.testing.assert_array_equal(slot.found_value, slot.value)
        for slot in mine[:stays]:
            for first in (0, 32):
                group = slice(first, first + 32)
                assert_asymmetric(slot.value[group], slot.found_value[group], 4, torch.float32)
        kept = packed[0].keys.channels if packed else None
        for channel in range(20) if kept is None else kept[head].tolist():
            keys, found = (np.array([getattr(slot, name)[channel] for slot in mine]) for name in ("key", "found_key"))
            for start in range(0, stays, 32):
                assert_asymmetric(keys[start : start + 32], found[start : start + 32], 4, torch.float32)


def test_without_one_nothing_changes() -> None:
    view, selection = layer_of(20, 36, 100), selected([100, 70], 100, 3)
    one, other = (Packed(precision=each).pack(view, selection, 3) for each in (Kivi(), Kivi(residual=3)))
    assert [type(part) for part in parts_of(one)] == [type(part) for part in parts_of(other)]
    for mine, theirs in zip(one.recover(torch.arange(170)), other.recover(torch.arange(170)), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("window", "residual"), [(0, 40), (8, 40), (40, 8), (3, 0)])
def test_the_cost_of_a_layer_is_exact_where_groups_are_full(window: int, residual: int) -> None:
    count = 64 + max(window, residual)
    view, selection = layer_of(20, length=count), selected([count, count], count, window)
    store = Packed(precision=Kivi(residual=residual))
    cost = store.cost(LayerShape(0, 2, 20, 20, view.keys.element_size(), window))
    assert cost.fixed + cost.slot * 2 * count == store.bytes(view, selection, window)


@pytest.mark.parametrize("length", [7, 100, 300])
def test_bytes_are_a_limit_for_short_prompts_and_long_ones(length: int) -> None:
    """A prompt shorter than the residual needs no bytes for all of it."""
    model = build("llama")
    model.set_attn_implementation("winnow")
    budget = 24 if length == 7 else 160  # KiB, where 128 dense tokens of 3 layers and 2 heads take 99
    method = winnow.method("snapkv(window=4)+ada+kivi(4, residual=128)", f"{budget}KiB")
    cache = winnow.CompressedCache(model, method)
    with torch.no_grad():
        model(prompt(length=length), past_key_values=cache)
    held = sum(sum(layer.prefixes[0].bytes().values()) for layer in cache.layers)
    assert held <= budget * 1024
    assert sum(map(sum, cache.stats().slots)) == length * 6 or held > 0.97 * budget * 1024


def test_bytes_that_do_not_hold_it_are_refused() -> None:
    model = build("llama")
    model.set_attn_implementation("winnow")
    method = winnow.method("snapkv(window=4)+kivi(4, residual=128)", "64KiB")
    with pytest.raises(BudgetError, match=r"cannot hold the 128 tokens per head .* use at least 10\d{4} bytes"):
        winnow.compress(model, prompt(length=300), method)


@pytest.mark.parametrize("residual", ["-1", "0.5", "true"])
def test_numbers_of_slots_are_checked(residual: str) -> None:
    with pytest.raises(MethodError, match="residual must be a whole number of at least 0"):
        winnow.method(f"full+kivi(4, residual={residual})")


def test_it_is_read_and_written_by_name() -> None:
    method = winnow.method("snapkv+kivi(2, residual=128) @ 5%")
    assert method.store == Packed(precision=Kivi(2, residual=128))
    assert winnow.method(str(method)) == method
