"""Rotated and centered keys and values, and keys of other bits than values, against their definitions in float64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from support.dense_attention import DTYPES
from support.packed_oracle import sylvester
from support.packed_slots import DIMS, WINDOW, layer_of, packed_in, selected, slots_of
from support.quantizers import assert_asymmetric, assert_close, rounded
from support.stores import plain_bits, scores_of
from winnow.errors import MethodError
from winnow.kernels import DenseBlock, PackedBlock, Parts
from winnow.kernels.formats.packed import Form
from winnow.select import Selection
from winnow.store import AllChannels, Bits, Earlier, Kivi, MixedBits, Packed, Spark, SparkP, Think
from winnow.view import LayerView

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_on_the_grid(numbers: np.ndarray, found: np.ndarray, bits: int, dtype: torch.dtype) -> None:
    """As `assert_symmetric`, where numbers were transformed in fp32: half-way numbers may go either way."""
    most = max(1, 2 ** (bits - 1) - 1)
    scale = rounded(np.abs(numbers).max() / most, dtype)
    if scale == 0:
        assert_close(found, 0.0, 1e-6)
        return
    integers, size = found / scale, 1e-3 * (1 + np.abs(found).max() / scale)
    assert_close(integers, integers.round(), size)
    assert (np.abs(integers - (numbers / scale).clip(-most, most)) <= 0.5 + size).all()


def head_means(view: LayerView, selection: Selection) -> list[np.ndarray]:
    """Means of the kept keys of every head, in the model's dtype."""
    found = []
    for head, (start, stop) in enumerate(pairwise(selection.offsets.tolist())):
        kept = view.keys[head, selection.positions[start:stop]].double()
        mean = kept.sum(0) / max(len(kept), 1)
        found.append(mean.to(view.keys.dtype).double().numpy())
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("dims", DIMS)
def test_rotated_rows_are_quantized_after_the_transform(
    dims: tuple[int, int], bits: Any, center: bool, dtype: torch.dtype
) -> None:
    view, selection = layer_of(*dims, dtype=dtype, seed=bits), selected([9, 24, 0], 24)
    view = layer_of(*dims, heads=3, dtype=dtype, seed=bits)
    block = Packed(precision=plain_bits(high=bits, rotate=True, center=center)).pack(view, selection, WINDOW)
    assert isinstance(block, PackedBlock)
    assert (block.keys.rotated, block.values.rotated, block.keys.means is not None) == (True, True, center)
    means = head_means(view, selection)
    turn, value_turn = sylvester(dims[0]), sylvester(dims[1])
    for slot in slots_of(block, view, selection, WINDOW):
        mean = means[slot.head] if center else 0.0
        assert_on_the_grid(turn @ (slot.key - mean), turn @ (slot.found_key - mean), bits, dtype)
        assert_on_the_grid(value_turn @ slot.value, value_turn @ slot.found_value, bits, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_centered_keys_are_quantized_about_the_mean_of_their_head(dtype: torch.dtype) -> None:
    view, selection = layer_of(40, 24, dtype=dtype), selected([9, 24], 24)
    view = view._replace(keys=(view.keys.float() + 30 * torch.randn(2, 1, 40)).to(dtype))
    block = Packed(precision=plain_bits(high=4, center=True)).pack(view, selection, WINDOW)
    means = head_means(view, selection)
    assert isinstance(block, PackedBlock)
    assert block.keys.means is not None
    np.testing.assert_array_equal(block.keys.means.double().numpy(), np.stack(means))
    for slot in slots_of(block, view, selection, WINDOW):
        mean = means[slot.head]
        assert_on_the_grid(slot.key - mean, slot.found_key - mean, 4, dtype)


@pytest.mark.parametrize(("k", "v"), [(8, 4), (4, 8), (2, 16), (16, 2)])
@pytest.mark.parametrize("rotate", [False, True])
def test_keys_and_values_have_bits_of_their_own(k: Any, v: Any, rotate: bool) -> None:
    view, selection = layer_of(40, 24), selected([9, 24], 24)
    block = packed_in(Packed(precision=plain_bits(k=k, v=v, rotate=rotate)).pack(view, selection, WINDOW))
    assert (block.keys.entries.bits, block.values.entries.bits) == (k, v)
    assert (block.keys.rotated, block.values.rotated) == (rotate and k < 16, rotate and v < 16)
    for slot in slots_of(block, view, selection, WINDOW):
        for bits, number, found in ((k, slot.key, slot.found_key), (v, slot.value, slot.found_value)):
            turn = sylvester(len(number)) if rotate else np.eye(len(number))
            if bits == 16:
                np.testing.assert_array_equal(found, number)
            else:
                assert_on_the_grid(turn @ number, turn @ found, bits, torch.float32)


def test_kivi_groups_what_was_rotated() -> None:
    view, selection = layer_of(40, 24, length=70), selected([68, 36], 70)
    block = packed_in(Packed(precision=Kivi(rotate=True)).pack(view, selection, WINDOW))
    keys = (block.recover(torch.arange(96))[0].double() @ torch.from_numpy(sylvester(40))).numpy()
    right = view.keys[0, selection.positions[:32]].double().numpy() @ sylvester(40)
    for channel in range(40):
        assert_asymmetric(right[:, channel], keys[:32, channel], 4, torch.float32)


def test_mixed_bits_rotate_the_heads_that_have_few() -> None:
    precision = MixedBits(mean=12, rotate=True, center=True, smooth=False, scores=scores_of([[1.0, 0.1]]))
    view, selection = layer_of(40, 24), selected([9, 24], 24)
    block = Packed(precision=precision).pack(view, selection, WINDOW)
    assert isinstance(block, Parts)
    forms = {part.keys.form for part in block.parts if isinstance(part, PackedBlock)}
    assert [(form.bits, form.rotated, form.centered) for form in forms] == [(8, True, True)]
    assert any(isinstance(part, DenseBlock) for part in block.parts)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.sampled_from([(1, 1), (7, 20), (20, 36), (64, 80)]),
    st.sampled_from([(8, 8), (4, 4), (8, 4), (16, 4)]),
    st.sampled_from(DTYPES),
)
def test_error_is_within_half_a_step_of_the_transformed_row(
    counts: list[int], dims: tuple[int, int], bits: tuple[int, int], dtype: torch.dtype
) -> None:
    """Any heads, empty ones and ones of a single token too: |x' - x| <= |error of the row| of half a step each."""
    view = layer_of(*dims, length=30, heads=len(counts), group=1, dtype=dtype)
    selection = selected(counts, 30)
    k, v = bits
    block = Packed(precision=plain_bits(k=k, v=v, rotate=True)).pack(view, selection, WINDOW)
    for slot in slots_of(block, view, selection, WINDOW):
        for width, number, found in ((k, slot.key, slot.found_key), (v, slot.value, slot.found_value)):
            largest = np.abs(sylvester(len(number)) @ number).max()
            step = 0.0 if width == 16 else largest / (2 ** (width - 1) - 1)
            clipped = 0.0 if width == 16 else largest * torch.finfo(dtype).eps
            allowed = np.sqrt(len(number)) * (step / 2 + clipped) + 1e-5
            assert np.linalg.norm(found - number) <= allowed


def head_spreads(view: LayerView, selection: Selection, centered: bool) -> list[np.ndarray]:
    """The fourth root of the mean square of the kept keys of every head, about their mean or about 0."""
    found = []
    for head, (start, stop) in enumerate(pairwise(selection.offsets.tolist())):
        kept = view.keys[head, selection.positions[start:stop]].double().numpy()
        about = kept - kept.mean(0) if centered else kept
        spread = (about**2).mean(0) ** 0.25
        found.append(np.array([rounded(float(each), view.keys.dtype) or 1.0 for each in spread]))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("center", [False, True])
def test_smoothed_keys_are_quantized_over_the_root_of_their_spread(
    center: bool, rotate: bool, dtype: torch.dtype
) -> None:
    selection = selected([9, 24], 24)
    view = layer_of(40, 24, dtype=dtype)
    view.keys[:, :, 3] *= 50
    view.keys[:, :, 5] = 0.5 if center else 0
    block = packed_in(
        Packed(precision=plain_bits(high=4, center=center, smooth=True, rotate=rotate)).pack(view, selection, WINDOW)
    )
    means, spreads = head_means(view, selection), head_spreads(view, selection, center)
    turn = sylvester(40) if rotate else np.eye(40)
    assert block.keys.spreads is not None
    np.testing.assert_allclose(block.keys.spreads.double().numpy(), np.stack(spreads), rtol=torch.finfo(dtype).eps)
    for slot in slots_of(block, view, selection, WINDOW):
        mean = means[slot.head] if center else 0.0
        own = block.keys.spreads[slot.head].double().numpy()
        assert_on_the_grid(turn @ ((slot.key - mean) / own), turn @ ((slot.found_key - mean) / own), 4, dtype)


def test_statistics_stay_those_of_the_prompt() -> None:
    view, selection = layer_of(40, 24), selected([9, 24], 24)
    store = Packed(precision=plain_bits(high=4, center=True, smooth=True, rotate=True))
    block = packed_in(store.pack(view, selection, WINDOW))
    slots = torch.full((2, 24), -1)
    later = packed_in(store.pack(layer_of(40, 24, seed=9), selection, WINDOW, Earlier(block, slots)))
    assert block.keys.means is not None
    assert later.keys.means is not None
    assert torch.equal(block.keys.means, later.keys.means)
    assert block.keys.means.data_ptr() != later.keys.means.data_ptr()
    assert block.keys.spreads is not None
    assert later.keys.spreads is not None
    assert torch.equal(block.keys.spreads, later.keys.spreads)


@pytest.mark.parametrize(
    "other",
    [
        plain_bits(high=4, rotate=True),
        plain_bits(high=4, center=True),
        plain_bits(high=4, smooth=True),
        plain_bits(k=4, v=8),
    ],
)
def test_slots_of_another_form_are_written_again(other: Bits) -> None:
    """A context that was saved under one form goes on under another."""
    view, selection = layer_of(40, 24), selected([9, 24], 24)
    block = packed_in(Packed(precision=plain_bits(high=4)).pack(view, selection, WINDOW))
    counts = selection.offsets.diff()
    columns = torch.arange(24)
    slots = torch.where(columns < counts[:, None], selection.offsets[:-1, None] + columns, -1)
    keys, values = block.recover(slots.clamp(min=0))
    again = view._replace(keys=keys, values=values)
    kept = Selection(torch.cat([torch.arange(9), torch.arange(24)]), selection.offsets)
    found = packed_in(Packed(precision=other).pack(again, kept, WINDOW, Earlier(block, slots)))
    for slot in slots_of(found, again, kept, WINDOW):
        assert np.corrcoef(slot.found_key, slot.key)[0, 1] > 0.9


REFUSED = {
    "full+spark(0.5)+bits(4, rotate=true)": "rotate mixes all channels of a key",
    "full+spark-p+bits(4, rotate=true)": "leave rotate out",
    "full+think+bits(4, rotate=values)": "leave rotate out",
    "full+think+kivi(rotate=true)": "the part that drops channels",
    "full+think+bits(4, center=true)": "center and smooth need keys with all their channels",
    "full+spark+bits(4, smooth=true)": "leave them out",
    "full+bits(smooth=2)": "smooth must be one of",
    "full+bits(8, 4, k=4)": "low is for half of the heads",
    "full+bits(2, k=8, v=4)": "so high=2 has no effect",
    "full+bits(k=16, v=16)": "would store everything as it is",
    "full+bits(k=5)": "k must be one of",
    "full+bits(rotate=1)": "rotate must be one of True, False, 'keys', 'values'",
    "full+kivi(rotate=maybe)": "rotate must be one of",
    "full+bits(center=values)": "center must be one of",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    with pytest.raises(MethodError, match=REFUSED[name].replace("(", r"\(")):
        winnow.method(name)


@pytest.mark.parametrize(
    "name",
    [
        "full+bits(high=4, rotate=true)",
        "full+bits(k=8, v=4)",
        "full+bits(v=4, rotate=true, center=true)",
        "full+mixedbits(rotate=keys)",
        "full+kivi(rotate=true)",
    ],
)
def test_names_read_back(name: str) -> None:
    made = winnow.method(name)
    assert str(made) == name
    assert winnow.method(str(made)) == made


@pytest.mark.parametrize(("rotate", "sides"), [("keys", (True, False)), ("values", (False, True))])
def test_one_side_alone_is_rotated(rotate: Any, sides: tuple[bool, bool]) -> None:
    view, selection = layer_of(40, 24), selected([9, 24], 24)
    block = packed_in(Packed(precision=plain_bits(high=4, rotate=rotate)).pack(view, selection, WINDOW))
    assert (block.keys.rotated, block.values.rotated) == sides
    for slot in slots_of(block, view, selection, WINDOW):
        for turned, number, found in zip(
            sides, (slot.key, slot.value), (slot.found_key, slot.found_value), strict=True
        ):
            turn = sylvester(len(number)) if turned else np.eye(len(number))
            assert_on_the_grid(turn @ number, turn @ found, 4, torch.float32)


@pytest.mark.parametrize("channels", [Spark(), SparkP(), Think()])
def test_auto_turns_rows_where_all_channels_stay(channels: Any) -> None:
    view, selection = layer_of(40, 24), selected([9, 24], 24)
    auto = plain_bits(high=4, rotate="auto", center="auto", smooth="auto")
    whole = packed_in(Packed(AllChannels(), auto).pack(view, selection, WINDOW))
    assert (whole.keys.form, whole.values.form) == (Form(4, True, True, True), Form(4, True))
    some = packed_in(Packed(channels, auto).pack(view, selection, WINDOW))
    assert (some.keys.form, some.values.form) == (Form(4), Form(4))
