"""Tails of later tokens, with a limit."""

from __future__ import annotations

import torch

from winnow.cache.tail import Tail


def test_tails_with_a_limit_stop_growing():
    keys = torch.zeros(1, 1, 1, 2)
    tail = Tail(keys, keys, limit=100)
    for _ in range(100):
        tail.append(keys, keys)
    assert tail.keys.shape[2] == 100
