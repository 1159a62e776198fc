"""New tokens written into a tail by a kernel, at places that the device knows, against plain assignment."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.gpu import DEVICE

pytest.importorskip("triton")


@settings(max_examples=20, deadline=None)  # a compilation each on a GPU
@given(
    rows=st.integers(1, 3),
    heads=st.integers(1, 3),
    dims=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    room=st.integers(1, 5),
    spread=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    data=st.data(),
)
def test_every_row_has_its_token_where_its_place_says(
    rows: int, heads: int, dims: tuple[int, int], room: int, spread: bool, dtype: torch.dtype, data: st.DataObject
) -> None:
    from winnow.kernels.gpu.keeping import keep

    held = [torch.randn(rows, heads, room, dim, device=DEVICE).to(dtype) for dim in dims]
    # As models give them: heads of a token side by side.
    new = [torch.randn(rows, 1, heads, dim, device=DEVICE).to(dtype).transpose(1, 2) for dim in dims]
    if not spread:
        new = [each.contiguous() for each in new]
    places = data.draw(st.lists(st.integers(0, room - 1), min_size=rows, max_size=rows))
    expected = [each.clone() for each in held]
    for row, place in enumerate(places):
        for into, each in zip(expected, new, strict=True):
            into[row, :, place] = each[row, :, 0]
    keep(torch.tensor(places, device=DEVICE), *new, *held)
    for found, into in zip(held, expected, strict=True):
        assert torch.equal(found, into)
