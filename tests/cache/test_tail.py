"""Tails of later tokens, with a limit."""

from __future__ import annotations

import torch

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
