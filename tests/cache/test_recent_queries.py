"""The last queries of every row."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from winnow.cache.recent_queries import RecentQueries


@given(st.integers(0, 5), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 4))
def test_recent_queries_are_the_last_ones(count, chunks, first):
    every = [torch.randn(2, first + row, 3) for row in range(2)]
    recent = RecentQueries(every, count)
    for size in chunks:
        new = torch.randn(2, 2, size, 3)
        recent.add(new, None, size=count + size if size % 2 == 0 else 0)
        every = [torch.cat([row, add], dim=1) for row, add in zip(every, new, strict=True)]
    for row in range(2):
        held = recent.held(row)
        assert held >= min(count, every[row].shape[1]) or not count
        assert torch.equal(recent.row(row), every[row][:, every[row].shape[1] - held :])
        last = min(count, held)
        assert torch.equal(recent.trimmed().row(row), every[row][:, every[row].shape[1] - last :])
