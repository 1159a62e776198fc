"""Infinities, zeros, and numbers at the ends of the range, in every packed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from support.dense_attention import DTYPES
from support.packed_slots import WINDOW, layer_of, selected, slots_of
from support.stores import ALL
from winnow.errors import ModelError

pytestmark = pytest.mark.usefixtures("one_thread")


def turned(name: str) -> bool:
    """True if a store may spread the error of a channel over others."""
    return bool(ALL[name].precision.rotate)


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
    """All zeros come back as zeros, but for constants in keys; one number as that, as exactly as the scales are."""
    view, selection = layer_of(40, 24, length=70, dtype=dtype), selected([60, 70], 70)
    view.keys[0], view.values[0] = 0, 0
    view.keys[1], view.values[1] = 0.7, -0.3
    block = ALL[name].pack(view, selection, WINDOW)
    for slot in slots_of(block, view, selection, WINDOW):
        assert np.isfinite(slot.found_key).all()
        if slot.head == 0:
            assert "constant" in name or not slot.found_key.any()
            assert not slot.found_value.any()
        else:
            np.testing.assert_allclose(slot.found_value, -0.3, rtol=2**-5 if turned(name) else 2**-7)


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
        # The error of a rotated row is spread over its channels, the large ones too.
        assert np.abs(slot.found_value).max() <= (1e5 if turned(name) else 6.6e4)


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
        spread = 24**0.5 if turned(name) else 1
        assert np.abs(slot.found_value - slot.value).max() <= np.ptp(slot.value) * 1.5 * spread
