"""New tokens that the compiled library copies into buffers, against plain loops."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.columns import Columns

pytestmark = pytest.mark.skipif(native.library() is None, reason="the native library was not built")

CAPACITY = 7


def numbers(rows: int, heads: int, tokens: int, dim: int, dtype: torch.dtype, transposed: bool) -> Tensor:
    """[R, H, Q, D] of which no two are equal, as models lay them out: heads of a token side by side, or contiguous."""
    every = torch.arange(rows * heads * tokens * dim).to(dtype)
    if transposed:
        return every.view(rows, tokens, heads, dim).transpose(1, 2)
    return every.view(rows, heads, tokens, dim)


def written(buffer: Tensor, new: Tensor, lengths: list[int]) -> Tensor:
    """The buffer [R, H, C, D] with new tokens [R, H, Q, D] behind those of every row, number by number."""
    expected = buffer.clone()
    for row, length in enumerate(lengths):
        for head in range(new.shape[1]):
            for token in range(new.shape[2]):
                for channel in range(new.shape[3]):
                    expected[row, head, length + token, channel] = new[row, head, token, channel]
    return expected


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    heads=st.integers(1, 3),
    dims=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    chunks=st.lists(st.integers(1, 2), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    transposed=st.booleans(),
)
def test_new_tokens_are_behind_those_of_every_row(lengths, heads, dims, chunks, dtype, transposed):
    buffers = [torch.full((len(lengths), heads, CAPACITY, dim), -1, dtype=dtype) for dim in dims]
    held = torch.tensor(lengths)
    columns = Columns(*buffers, held)
    for tokens in chunks:
        new = [numbers(len(lengths), heads, tokens, dim, dtype, transposed) for dim in dims]
        before, room = held.tolist(), max(held.tolist()) + tokens <= CAPACITY
        expected = [written(b, n, before) if room else b.clone() for b, n in zip(buffers, new, strict=True)]
        assert columns.append(*new) is room
        assert held.tolist() == [length + room * tokens for length in before]
        assert all(map(torch.equal, buffers, expected))


@given(st.integers(-1, CAPACITY), st.booleans())
def test_a_column_is_written_where_it_is_named(column, transposed):
    buffer, new = torch.full((2, 3, CAPACITY, 4), -1.0), numbers(2, 3, 1, 4, torch.float32, transposed)
    fits = 0 <= column < CAPACITY
    expected = written(buffer, new, [column, column]) if fits else buffer.clone()
    assert Columns(buffer).put(column, new) is fits
    assert torch.equal(buffer, expected)


@pytest.mark.parametrize(
    "new",
    [
        torch.zeros(1, 2, 1, 4, dtype=torch.float16),
        torch.zeros(2, 2, 1, 4),
        torch.zeros(1, 1, 1, 4),
        torch.zeros(1, 2, 1, 8)[..., ::2],
        torch.zeros(1, 2, 1, 5),
        torch.zeros(1, 2, 1, 4, device="meta"),
    ],
)
def test_what_is_of_another_kind_is_not_written(new):
    """Neither at first nor after others were accepted."""
    keys, lengths = torch.ones(1, 2, CAPACITY, 4), torch.zeros(1, dtype=torch.int64)
    columns = Columns(keys, keys.clone(), lengths)
    fitting = torch.ones(1, 2, 1, 4)
    for first, second in ((new, fitting), (fitting, new), (fitting, fitting), (new, fitting), (fitting, new)):
        held = lengths.item()
        assert columns.append(first, second) is (first is second)
        assert lengths.item() == held + (first is second)
    assert torch.equal(keys, torch.ones_like(keys))


def test_a_copy_writes_into_copies():
    keys, lengths = torch.zeros(1, 1, CAPACITY, 2), torch.zeros(1, dtype=torch.int64)
    columns = Columns(keys, keys.clone(), lengths)
    twin = deepcopy(columns)
    assert twin.append(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
    assert not keys.any()
    assert lengths.item() == 0
    assert twin.first.sum() == 2


def test_there_are_none_over_memory_with_gaps():
    assert Columns.over(torch.zeros(1, 2, CAPACITY, 8)[..., ::2]) is None
    assert Columns.over(torch.zeros(1, 2, CAPACITY, 8)) is not None
