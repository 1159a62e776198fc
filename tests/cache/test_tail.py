"""Tails of later tokens, with a limit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from winnow.cache.tail import Tail
from winnow.errors import CacheError
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


def test_chosen_rows_have_their_own_longest() -> None:
    tail = Tail(torch.empty(3, 1, 0, 2), torch.empty(3, 1, 0, 2))
    tail.restore(torch.tensor([5, 2, 2]))
    tail.select(torch.tensor([1, 2]))
    assert (tail.longest, tail.ragged, tail.lengths.tolist()) == (2, False, [2, 2])
    assert tail.lengths_there.tolist() == [2, 2]
    tail.restore(torch.tensor([2, 1]))
    tail.select(torch.tensor([1, 0, 1]))
    assert (tail.longest, tail.ragged, tail.lengths_there.tolist()) == (2, True, [1, 2, 1])


def test_what_cannot_be_cropped_is_told_of_the_row_that_lacks_most() -> None:
    tail = Tail(torch.empty(3, 1, 0, 2), torch.empty(3, 1, 0, 2))
    tail.restore(torch.tensor([5, 2, 4]))
    with pytest.raises(CacheError, match="cannot crop 3 tokens: only the last 2 can"):
        tail.crop(3)
    with pytest.raises(CacheError, match="cannot crop 6 tokens: only the last 4 can"):
        tail.crop(torch.tensor([5, 2, 6]))
    assert tail.lengths.tolist() == [5, 2, 4]
    tail.crop(torch.tensor([5, 2, 4]))
    assert tail.longest == 0


def test_buffers_know_no_gradients() -> None:
    keys = torch.ones(2, 1, 3, 2, requires_grad=True)
    for valid in (None, torch.tensor([[True, True, False], [True, False, False]])):
        tail = Tail(torch.empty(2, 1, 0, 2), torch.empty(2, 1, 0, 2))
        tail.append(keys, keys) if valid is None else tail.append_valid(keys, keys, valid)
        assert not tail.keys.requires_grad
        assert not tail.values.requires_grad
        tail.write_at(torch.tensor([0, 1]), keys[:, :, :1], keys[:, :, :1])
        assert not tail.keys.requires_grad


def test_a_copy_shares_nothing() -> None:
    tail = Tail(torch.empty(1, 1, 0, 2), torch.empty(1, 1, 0, 2))
    tail.append(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2))
    copy = tail.clone()
    tail.crop(2)
    tail.append(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))
    keys, values = copy.row(0)
    assert keys.tolist() == values.tolist() == [[[1, 1]] * 3]
    assert copy.lengths.tolist() == [3]


def test_buffers_of_a_chunk_beyond_the_limit_are_given_back_but_for_what_comes_next() -> None:
    many = torch.zeros(1, 1, 100, 2)
    for room, left in ((1, 8), (20, 27), (60, 100)):
        tail = Tail(many, many, limit=8)
        assert tail.keys.shape[2] == 8
        tail.append(many, many)
        assert tail.keys.shape[2] == 100
        assert tail.emptied([0], room).keys.shape[2] == left


def test_tokens_that_follow_are_those_that_are_no_padding() -> None:
    tail = Tail(torch.empty(2, 1, 0, 2), torch.empty(2, 1, 0, 2))
    tail.append(torch.zeros(2, 1, 1, 2), torch.zeros(2, 1, 1, 2))
    new = torch.arange(6.0).view(2, 1, 3, 1).expand(2, 1, 3, 2)
    twin = tail.followed_by(new, new, torch.tensor([[False, True, True], [False, False, True]]))
    assert (twin.lengths.tolist(), tail.lengths.tolist()) == ([3, 2], [1, 1])
    assert [twin.row(row)[0][0, :, 0].tolist() for row in (0, 1)] == [[0, 1, 2], [0, 5]]


def test_rows_beyond_a_limit_are_joined_with_all_that_they_hold() -> None:
    tails = []
    for count in (10, 2):
        tokens = torch.arange(float(count)).view(1, 1, count, 1).expand(1, 1, count, 2)
        tails.append(Tail(tokens, tokens, limit=4))
        tails[-1].append(tokens, tokens)
    for first, second in (tails, tails[::-1]):
        found = first.joined([second])
        for row, each in enumerate((first, second)):
            assert torch.equal(found.row(row)[0], each.row(0)[0])
            assert torch.equal(found.row(row)[1], each.row(0)[1])


def test_what_is_emptied_is_another_tail() -> None:
    """An interrupt goes back to the one before."""
    tail = Tail(torch.empty(2, 1, 0, 2), torch.empty(2, 1, 0, 2))
    tail.append(torch.ones(2, 1, 5, 2), torch.ones(2, 1, 5, 2))
    twin = tail.emptied([1], 1)
    assert (twin.lengths.tolist(), tail.lengths.tolist(), tail.longest) == ([5, 0], [5, 5], 5)
