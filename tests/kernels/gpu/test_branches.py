"""Launches side by side: all are made, those of a graph in branches that it joins again."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from support.gpu import DEVICE
from winnow.kernels.gpu.branches import side_by_side


def test_outside_a_graph_work_is_done_in_order() -> None:
    done: list[int] = []
    side_by_side(DEVICE, [partial(done.append, number) for number in range(3)])
    side_by_side(DEVICE, [])
    assert done == [0, 1, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
def test_branches_of_a_graph_begin_after_what_was_before_and_end_before_what_comes_next() -> None:
    numbers, parts = torch.ones(1 << 10, device="cuda"), torch.zeros(3, device="cuda")

    def work() -> None:
        numbers.mul_(2)
        sums = [lambda at=at: parts[at].copy_((numbers * (at + 1)).sum()) for at in range(3)]  # type: ignore[misc]
        side_by_side(numbers.device, sums)
        parts.add_(1)

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for time in range(1, 4):
        graph.replay()
        expected = [float((at + 1) * numbers.numel() * 2**time + 1) for at in range(3)]
        assert parts.tolist() == expected
