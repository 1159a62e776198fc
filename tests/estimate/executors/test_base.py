"""The queue: every item once, and examples stay with the workers that have read them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from support.items import ITEMS
from winnow.estimate.executors.base import Item, Queue
from winnow.estimate.executors.local import LocalExecutor


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), unique=True), st.integers(1, 4))
def test_every_item_goes_to_someone_once(pairs: list[tuple[int, int]], workers: int) -> None:
    items = [Item(*pair) for pair in pairs]
    queue, known = Queue(items), [set[int]() for _ in range(workers)]
    taken = []
    while queue:
        for mine in known:
            if queue:
                taken.append(queue.take(mine, set().union(*known)))
                assert taken[-1].example in mine
    assert sorted(taken) == sorted(items)


def test_a_worker_that_is_here_has_nothing_to_load() -> None:
    assert LocalExecutor(lambda item: item.batch).starting == 0


def test_examples_stay_with_who_has_read_them() -> None:
    queue = Queue([Item(batch, example) for example in range(4) for batch in range(10)])
    known: list[set[int]] = [set(), set()]
    while queue:
        for mine in known:
            if queue:
                queue.take(mine, known[0] | known[1])
    assert [len(mine) for mine in known] == [2, 2]
    assert not known[0] & known[1]


def test_a_lost_item_waits_again() -> None:
    queue = Queue(ITEMS[:1])
    item = queue.take(set(), set())
    assert not queue
    queue.put_back(item)
    assert queue.take(set(), set()) == item
