"""Tails of later tokens, with a limit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from winnow.cache.tail import Tail
from winnow.kernels.columns import Columns


def test_tails_with_a_limit_stop_growing():
    keys = torch.zeros(1, 1, 1, 2)
    tail = Tail(keys, keys, limit=100)
    for _ in range(100):
        tail.append(keys, keys)
    assert tail.keys.shape[2] == 100


def test_tokens_are_the_same_without_the_compiled_library(monkeypatch):
    """Rows of one length, rows that differ, and tokens that come in another dtype."""
    tails = []
    for compiled in (True, False):
        generator = torch.Generator().manual_seed(0)
        with monkeypatch.context() as patch:
            if not compiled:
                patch.setattr(Columns, "over", lambda *buffers: None)
            tail = Tail(torch.empty(2, 3, 0, 4), torch.empty(2, 3, 0, 5), capacity=2)
            for step in range(30):
                keys, values = (torch.randn(2, 1, 3, dim, generator=generator).transpose(1, 2) for dim in (4, 5))
                if step == 9:
                    tail.append_valid(keys, values, torch.tensor([[True], [False]]))
                elif step == 19:
                    tail.append(keys.double(), values.double())
                else:
                    tail.append(keys, values)
        tails.append(tail)
    for row in range(2):
        assert all(map(torch.equal, tails[0].row(row), tails[1].row(row)))
    assert tails[0].lengths.tolist() == tails[1].lengths.tolist() == [30, 29]


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4), heads=st.integers(1, 3), room=st.integers(1, 70))
def test_tokens_written_at_places_are_those_that_are_appended(lengths: list[int], heads: int, room: int) -> None:
    """Rows of any lengths; keys and values of different sizes, and of another dtype."""
    rows = len(lengths)
    tails = []
    for _ in range(2):
        tail = Tail(torch.empty(rows, heads, 0, 4), torch.empty(rows, heads, 0, 5), capacity=10)
        tail.restore(torch.tensor(lengths))
        tails.append(tail)
    placed, appended = tails
    placed.make_room(room)
    assert placed.room() >= room
    for _ in range(min(room, 3)):
        keys, values = torch.randn(rows, heads, 1, 4, dtype=torch.float64), torch.randn(rows, heads, 1, 5)
        appended.append(keys, values)
        placed.write_at(placed.lengths_there, keys, values)
        placed.lengths_there += 1  # as a graph does on the device
        placed.count()
    assert placed.lengths.tolist() == appended.lengths.tolist()
    assert (placed.longest, placed.ragged) == (appended.longest, appended.ragged)
    for row, length in enumerate(lengths):
        for one, other in zip(placed.row(row), appended.row(row), strict=True):
            assert torch.equal(one[:, length:], other[:, length:])


def test_room_ends_where_tails_are_folded():
    keys = torch.zeros(1, 1, 1, 2)
    tail = Tail(keys, keys, capacity=2, limit=5)
    assert tail.make_room(100)
    assert (tail.room(), tail.make_room(100)) == (5, False)
    for _ in range(5):
        tail.append(keys, keys)
    assert tail.make_room(100)
    assert tail.room() == 1


def test_every_row_loses_its_own_number_of_tokens():
    keys = torch.zeros(2, 1, 5, 4)
    tail = Tail(keys, keys)
    tail.append(keys, keys)
    tail.crop(torch.tensor([1, 3]))
    assert (tail.lengths.tolist(), tail.longest, tail.ragged) == ([4, 2], 4, True)
    tail.append(keys[:, :, :1] + 1, keys[:, :, :1] + 1)
    assert [tail.row(row)[0].sum() for row in range(2)] == [4, 4]


def test_bytes_in_use_are_those_of_the_tokens_of_each_row():
    keys, values = torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 5, 8)
    tail = Tail(keys, values)
    tail.append_valid(keys, values, torch.tensor([[True] * 5, [True] * 2 + [False] * 3]))
    assert tail.used_bytes() == (5 + 2) * 3 * (4 + 8) * 4


def test_rows_that_hold_nothing_are_chosen_without_copying_their_buffers(monkeypatch):
    """A whole prompt may have passed through them."""
    tail = Tail(torch.empty(2, 3, 0, 4), torch.empty(2, 3, 0, 5, dtype=torch.bfloat16), capacity=7)
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *_: pytest.fail("the buffers were copied"))
    tail.select(torch.tensor([1, 0, 1]))
    assert (tail.keys.shape, tail.values.shape) == ((3, 3, 7, 4), (3, 3, 7, 5))
    assert (tail.values.dtype, tail.lengths.tolist(), tail.longest) == (torch.bfloat16, [0, 0, 0], 0)
    keys, values = torch.randn(3, 3, 1, 4), torch.randn(3, 3, 1, 5).bfloat16()
    tail.append(keys, values)
    assert torch.equal(tail.row(2)[0], keys[2])
    monkeypatch.undo()
    tail.select(torch.tensor([2, 0]))
    assert torch.equal(tail.row(0)[1], values[2])
