"""Scales with which the lowest integer is in use, against their definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.dense_attention import DTYPES
from support.packed_oracle import sylvester
from support.packed_slots import WINDOW, bytes_held, layer_of, packed_in, selected, slots_of
from support.quantizers import assert_signed
from support.stores import plain_bits, scores_of
from winnow.errors import MethodError
from winnow.kernels.formats.bits import unpack_rows
from winnow.store import Bits, MixedBits, Packed, Spark, Think
from winnow.view import LayerView

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_all_signed(precision: Any, view: LayerView, counts: list[int]) -> None:
    """Every slot, group by group, keys and values, in rotated coordinates where they are."""
    selection = selected(counts, view.keys.shape[1])
    store = Packed(precision=precision)
    block = store.pack(view, selection, WINDOW)
    assert bytes_held(block, selection) == store.bytes(view, selection, WINDOW)
    bits = precision.bits(0, len(counts)).tolist()
    for slot in slots_of(block, view, selection, WINDOW):
        for number, found in ((slot.key, slot.found_key), (slot.value, slot.found_value)):
            turn = sylvester(len(number)) if precision.rotate else np.eye(len(number))
            turned, back = turn @ number, turn @ found
            wide = precision.channels_together or len(number)
            for first in range(0, len(number), wide):
                own = slice(first, first + wide)
                assert_signed(turned[own], back[own], bits[slot.head], view.keys.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [8, 6, 4, 3, 2])
@pytest.mark.parametrize(("dims", "group"), [((20, 20), 0), ((40, 24), 0), ((72, 96), 32), ((128, 64), 64)])
def test_the_number_of_the_largest_size_is_the_lowest_integer(
    dims: tuple[int, int], group: int, bits: Any, dtype: torch.dtype
) -> None:
    view = layer_of(*dims, dtype=dtype, seed=bits)
    assert_all_signed(plain_bits(high=bits, group=group, scales="signed"), view, [9, 24])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=3).filter(any),
    st.integers(1, 40),
    st.sampled_from([8, 6, 4, 3, 2]),
    st.sampled_from([0, 32]),
    st.booleans(),
)
def test_of_any_heads_bits_and_lengths(counts: list[int], dim: int, bits: Any, group: int, rotate: bool) -> None:
    view = layer_of(dim, 8, length=12, heads=len(counts), seed=dim)
    assert_all_signed(plain_bits(high=bits, group=group, rotate=rotate, scales="signed"), view, counts)


def test_heads_of_different_bits() -> None:
    precision = MixedBits(
        mean=5, rotate=False, center=False, smooth=False, scales="signed", scores=scores_of([[0.3, 0.9, 0.2]])
    )
    assert len(precision.bits(0, 3).unique()) > 1
    assert_all_signed(precision, layer_of(20, heads=3), [9, 24, 12])


@pytest.mark.parametrize("group", [0, 32])
def test_of_either_sign(group: int) -> None:
    """A row with one number is exact; of two as large, the one below zero is."""
    view, selection = layer_of(40, heads=3), selected([24, 24, 24], 24)
    view.keys[:] = 0
    view.keys[0, :, 7], view.keys[1, :, 7], view.keys[2, :, 7], view.keys[2, :, 9] = 3.5, -3.5, 3.5, -3.5
    block = packed_in(Packed(precision=plain_bits(high=4, group=group, scales="signed")).pack(view, selection, WINDOW))
    keys = block.keys.entries
    integers = unpack_rows(keys.data, 40, 4, signed=True)
    assert integers[:, 7].tolist() == [-8] * 48 + [7] * 24
    assert integers[48:, 9].tolist() == [-8] * 24
    assert keys.scales is not None
    assert keys.scales.view(72, -1)[:, 0].sign().tolist() == [-1.0] * 24 + [1.0] * 48
    torch.testing.assert_close(block.recover(torch.arange(48))[0].view(2, 24, 40), view.keys[:2], rtol=1e-6, atol=0)


def test_the_error_falls_by_a_fifth_in_as_many_bytes() -> None:
    view, selection = layer_of(128, length=100), selected([100, 100], 100)

    def error(scales: Any) -> tuple[float, dict[str, int]]:
        block = Packed(precision=Bits(high=4, scales=scales)).pack(view, selection, WINDOW)
        slots = slots_of(block, view, selection, WINDOW)
        return sum(float(((slot.found_value - slot.value) ** 2).sum()) for slot in slots), block.bytes()

    (signed, few), (symmetric, as_few) = error("signed"), error("symmetric")
    assert few == as_few
    assert signed < 0.8 * symmetric


@pytest.mark.parametrize("channels", [Spark(), Think()])
def test_after_a_choice_of_channels(channels: Any) -> None:
    store = Packed(channels, Bits(high=4, scales="signed"))
    view, selection = layer_of(40), selected([24, 24], 24)
    block = store.pack(view, selection, WINDOW)
    assert bytes_held(block, selection) == store.bytes(view, selection, WINDOW)
    for slot in slots_of(block, view, selection, 0):
        if slot.position < 24 - WINDOW:
            assert_signed(slot.value, slot.found_value, 4, torch.float32)


def test_other_words_are_refused_and_names_read_back() -> None:
    with pytest.raises(MethodError, match="scales must be one of 'symmetric', 'signed'"):
        winnow.method("full+bits(4, scales=best)")
    made = winnow.method("full+mixedbits(5, scales=signed, round=queries)")
    assert winnow.method(str(made)) == made
