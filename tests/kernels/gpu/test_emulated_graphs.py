"""The emulation of CUDA graphs that tests without a GPU rely on: it notices what a graph would do wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import torch
from torch import Tensor

from support.elsewhere import GPU, Elsewhere, there
from support.graphed import ON_GPU, Places, places
from support.graphs import EmulatedGraph
from winnow.cache.recent_queries import RecentQueries
from winnow.cache.tail import Tail

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(ON_GPU, reason="the device itself notices"),
]


@pytest.fixture(scope="module", autouse=True)
def both_places() -> Iterator[Places]:
    with places(kernels=False) as found:
        yield found


def write_where_the_host_knows(tail: Tail, rows: Tensor, keys: Tensor, values: Tensor) -> None:
    tail.keys[:, :, tail.longest].copy_(keys[:, :, 0])
    tail.values[:, :, tail.longest].copy_(values[:, :, 0])


def put_where_the_host_knows(recent: RecentQueries, column: Tensor, queries: Tensor) -> None:
    recent.ring[:, :, recent.next].copy_(queries[:, :, 0])


@pytest.mark.parametrize(
    ("owner", "function"), [(Tail, write_where_the_host_knows), (RecentQueries, put_where_the_host_knows)]
)
def test_a_place_that_the_host_knows_is_noticed_at_the_next_token(
    both_places: Places, owner: type, function: Callable[..., None]
) -> None:
    both = both_places.pair("snapkv(window=4) @ 12", fold_every=20)
    both.graphed()
    with mock.patch.object(owner, "write_at", function):
        assert both.steps(3) == [False, False, True]
        with pytest.raises(AssertionError, match="not close"):
            both.steps(1)


def test_a_position_that_the_host_knows_is_noticed_at_the_next_token(both_places: Places) -> None:
    both = both_places.pair()
    both.graphed()
    both.steps(2)
    with mock.patch.object(Elsewhere, "add_", lambda positions, one: positions, create=True):
        assert both.steps(1) == [True]
    with pytest.raises(AssertionError, match="not close"):
        both.steps(1)


def test_recording_does_nothing_and_a_replay_does_it_all() -> None:
    memory, count = there(torch.zeros(3)), there(torch.tensor([1]))

    def work() -> Tensor:
        memory.index_copy_(0, count, torch.ones(1, device=GPU) * 5)
        count.add_(1)
        return memory * 2

    graph = EmulatedGraph(work, GPU)
    assert memory.here.tolist() == [0, 0, 0]
    graph.replay()
    graph.replay()
    assert memory.here.tolist() == [0, 5, 5]
    assert graph.output.here.tolist() == [0, 10, 10]


@pytest.mark.parametrize(
    "wait",
    [
        lambda there: float(there.sum()),
        lambda there: there.tolist(),
        lambda there: there.cpu(),
        lambda there: there.nonzero(),
        lambda there: there[there > 0],
        lambda there: there + torch.tensor([1.0]).to(GPU),
        lambda there: there.copy_(torch.ones(2)),
    ],
    ids=["item", "tolist", "download", "nonzero", "mask", "upload", "copy"],
)
def test_waiting_for_the_device_and_sending_there_are_refused(wait: Callable[[Elsewhere], object]) -> None:
    numbers = there(torch.ones(2))
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        EmulatedGraph(lambda: wait(numbers) and numbers, GPU)
    assert float(numbers.sum()) == 2  # and again it may


def test_memory_that_is_gone_is_noticed() -> None:
    held = {"numbers": there(torch.ones(2))}
    graph = EmulatedGraph(lambda: held["numbers"] + 1, GPU)
    graph.replay()
    held.clear()
    with pytest.raises(AssertionError, match="memory that is gone"):
        graph.replay()


def test_numbers_of_the_host_are_those_of_the_recording() -> None:
    numbers, factor = there(torch.ones(2)), torch.tensor(2.0)
    graph = EmulatedGraph(lambda: numbers * factor, GPU)
    factor.fill_(3)
    graph.replay()
    assert graph.output.here.tolist() == [2, 2]
