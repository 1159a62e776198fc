"""Compression of a layer on a GPU that stands in: nothing of the CPU gets into it, and the waits are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import winnow
from support.elsewhere import Elsewhere, counted, gpu_stand_in, moved, there, triton_stand_in
from support.views import random_view
from winnow.cache.prefix import Prefix, next_prefix
from winnow.cache.tail import Tail
from winnow.composition.method import Method, own_ranking
from winnow.doubts import Doubts, doubted, settled_together
from winnow.errors import ModelError
from winnow.store import LayerShape
from winnow.store.feedback import feedback
from winnow.store.key_statistics import KeyStatistics
from winnow.view import LayerView

LENGTH, HEADS, DIM = 200, 4, 64
WAITS = {
    "snapkv": 1,
    "pyramidkv": 1,
    "adakv": 2,
    "aperturekv": 3,
    "kvec": 1,
    "defensivekv": 4,
    "snapkv(pool_first=queries)": 1,
    "rkv": 1,
    "h2o": 1,
    "tova": 1,
    "knorm": 1,
    "keydiff": 1,
    "expectedattention": 1,
    "snapkv+bits(8)": 3,
    "snapkv+bits(4)": 7,
    "snapkv+bits(k=3, v=2, group=32)": 9,
    "snapkv+bits(4, round=queries)": 10,
    "adakv+kivi(2)": 7,
    "snapkv+think": 2,
    "snapkv+spark(0.5)": 7,
    "snapkv+spark(0.5)+bits(4)": 11,
    "snapkv+spark-p": 6,
    "snapkv+spark-g": 8,
}
"""Times that the host waits, also for copies to the device, while torch's operators compress a layer of a row."""
TRITON_WAITS = {
    "snapkv+bits(8)": 1,
    "snapkv+bits(k=16, v=4)": 1,
    "snapkv+bits(4, group=32, scales=signed)": 1,
    "snapkv+bits(4, round=queries)": 4,
    "adakv+kivi(2)": 2,
    "snapkv+think": 1,
    "snapkv+think+bits(4)": 1,
    "snapkv+spark(0.5)": 1,
    "snapkv+spark(0.5, values=0.5, recent=pruned)+bits(4)": 1,
    "snapkv+spark-p": 2,
    "snapkv+spark-p+bits(8)": 3,
    "snapkv+spark-g": 2,
    "snapkv+spark-g(by=segments)": 1,
}
"""The same where Triton packs."""


def a_view(method: Method) -> LayerView:
    view = random_view(heads=HEADS, length=LENGTH, dim=DIM, dtype=torch.bfloat16, layers=1)
    asked = method.queries_needed(LENGTH)
    return view._replace(queries=view.queries[:, LENGTH - asked :], coverage=torch.zeros(LENGTH, dtype=torch.int32))


def compressed(method: Method, view: LayerView) -> Prefix:
    shape = LayerShape(0, HEADS, DIM, DIM, 2, min(method.scorer.window, LENGTH))
    allocation = method.allocation(LENGTH, (HEADS,), (method.store.cost(shape),))
    with torch.no_grad(), settled_together():
        return next_prefix(method, view, allocation, None, own_ranking, carries=False)


@pytest.mark.parametrize("name", WAITS)
def test_a_layer_is_compressed_alike_on_a_gpu(name: str) -> None:
    same_there(name, WAITS[name])


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter stands in for a GPU where there is none")
@pytest.mark.parametrize("name", TRITON_WAITS)
def test_a_layer_is_packed_alike_by_triton(name: str) -> None:
    pytest.importorskip("triton")
    with triton_stand_in():
        same_there(name, TRITON_WAITS[name])


def same_there(name: str, most: int) -> None:
    """A layer is compressed alike on the CPU and on a GPU that stands in, which is waited for so many times at most."""
    method = winnow.method(name, budget=72)
    view = a_view(method)
    expected = compressed(method, view)
    with gpu_stand_in() as notes:
        found = compressed(method, moved(view))
    for mine, its in zip(tensors(expected), tensors(found), strict=True):
        assert torch.equal(mine, its.here if isinstance(its, Elsewhere) else its)
    assert all(isinstance(each, Elsewhere) for each in tensors(found) if each.dtype != torch.int64)
    assert waits(notes) <= most, notes


@pytest.mark.parametrize("broken", ["a key", "all keys", "a query", "a value"])
@pytest.mark.parametrize("name", WAITS)
def test_numbers_that_are_none_do_no_harm_before_they_are_found(name: str, broken: str) -> None:
    """An index that they lead out of a tensor would be the end of a real GPU's process."""
    method = winnow.method(name, budget=72)
    view = a_view(method)
    part = {
        "a key": view.keys[1, 7],
        "all keys": view.keys,
        "a query": view.queries[1, -1:],
        "a value": view.values[1, 7],
    }
    part[broken].fill_(torch.nan)
    if not part[broken].numel():
        pytest.skip("it looks at no queries")
    doubts = Doubts()
    with gpu_stand_in(), pytest.raises(ModelError) as raised:
        with doubts.collecting():
            for each in (view.keys, view.queries, view.values):
                if each.numel():
                    doubted(there(~each.isfinite().all()), ModelError("it is so"))
            compressed(method, moved(view))
        doubts.settle()
    led_to = raised.value.__context__
    assert not isinstance(led_to, IndexError), led_to
    assert "index" not in str(led_to)


def test_what_errors_are_worth_is_waited_for_once() -> None:
    view = a_view(winnow.method("snapkv+bits(4, round=queries)", budget=72))
    expected = feedback(view, True, KeyStatistics())
    with gpu_stand_in() as notes:
        found = feedback(moved(view), True, KeyStatistics())
    assert isinstance(found, Elsewhere)
    assert torch.equal(found.here, expected)
    assert waits(notes) == 1, notes  # whether queries are finite


@pytest.mark.parametrize("lengths", [[3, 3], [3, 1]], ids=str)
def test_a_step_appends_without_a_wait(lengths: list[int]) -> None:
    new = torch.randn(2, HEADS, 1, DIM)
    with gpu_stand_in() as notes:
        found = Tail(there(new), there(new), capacity=8)
        found.restore(torch.tensor(lengths))
        notes.clear()
        found.append(there(new), there(new))
        assert counted(notes) == Counter()
    for row, length in enumerate(lengths):
        assert torch.equal(found.keys.here[row, :, length], new[row, :, 0])
    assert found.lengths_there.here.tolist() == [length + 1 for length in lengths]
    assert found.bytes()["indices"] == 2 * found.lengths.nbytes


def waits(notes: list[tuple[str, str]]) -> int:
    """Everything but what is sent from memory that a GPU copies from by itself."""
    return sum(not (what == "upload" and place.startswith("transfers.py")) for what, place in notes)


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors of a prefix, in one order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from tensors(each)
    elif is_dataclass(value):
        for each in fields(value):
            yield from tensors(getattr(value, each.name))
