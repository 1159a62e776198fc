"""Budgets in bytes over packed stores: filled, never exceeded, and the least that works named."""

from __future__ import annotations

import re
from copy import copy
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import winnow
from support.families import build, prompt
from support.packed_caches import DIM, HEADS, LAYERS, N, composed, filled, prefix_bytes
from winnow import CompressedCache
from winnow.allocate import SlotPlan, Uniform
from winnow.allocate.base import Allocation
from winnow.budget import Budget
from winnow.cache.arriving import RowParts
from winnow.cache.compression import Compression
from winnow.composition.byte_budget import ByteBudget, Spending
from winnow.errors import BudgetError
from winnow.select import Selection
from winnow.store import Cost, LayerShape

pytestmark = pytest.mark.usefixtures("one_thread")

LONG = 2000
BYTES = [
    "snapkv+spark(0.5)",
    "adakv+spark(0.8, values=0.5)",
    "pyramidkv+spark-p(0.9)",
    "snapkv+spark-g(4)",
    "adakv+spark-g(5)+bits(8)",
    "ada-pyramidkv+think(0.5)",
    "snapkv+bits(8)",
    "adakv+bits(4, group=32)",
    "snapkv+bits(3)",
    "headkv-r2+bits(8, 4)",
    "ada-pyramidkv+mixedbits(5)",
    "snapkv+kivi(4)",
    "adakv+think(0.5)+kivi(2)",
    "adakv+spark(0.5)+bits(8, 4)",
    "knorm+spark-p(0.99)+bits(4)",
    "streamingllm+spark(0.5, recent=pruned)",
    "cokv+spark(0.3)+bits(2)",
    "snapkv",
]


@pytest.fixture(scope="module")
def prefilled(packed_model: Any) -> CompressedCache:
    """A long prompt that waits for any method to compress it."""
    past = CompressedCache(packed_model, winnow.method("full"), defer=True)
    with torch.no_grad():
        packed_model(long_prompt(), past_key_values=past, logits_to_keep=1)
    return past


def long_prompt() -> Tensor:
    return prompt(length=LONG)


@pytest.mark.parametrize(
    ("name", "share"),
    list(product(BYTES, [0.3, 0.6])),
)
def test_a_budget_in_bytes_is_filled_and_never_exceeded(prefilled: CompressedCache, name: str, share: float) -> None:
    """At least 99 % of it, all counted; slots here take up to 0.3 % of a layer's part."""
    everything = prefix_bytes(prefilled.compressed_by(composed(name, "100%")))
    amount = int(share * everything)
    past = prefilled.compressed_by(composed(name, f"{amount}B"))
    held = prefix_bytes(past)
    assert held == sum(past.stats().bytes.values()) - tail_bytes(past)
    assert 0.99 * amount <= held <= amount


def test_a_layer_asks_for_the_costs_of_all_at_once(prefilled: CompressedCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that time does not grow with the square of the layers; costs are those of every layer's own shape."""
    parts = RowParts(*(torch.empty(4, 3, DIM) for _ in range(3)))
    method = composed("headkv-r2+bits(8, 4)", "20%")
    shared = replace(prefilled.compression, method=method, heads=[1, 2, 2], fold_every=32)
    shapes = [shared.shape(layer, parts.keys, parts.values, LONG) for layer in range(3)]
    dense = [shared.dense_bytes(shape, parts.queries) for shape in shapes]
    costs = [method.store.cost(shape) for shape in shapes]
    asked: list[LayerShape] = []
    given: list[Any] = []
    shape = Compression.shape
    monkeypatch.setattr(Compression, "shape", lambda *of: asked.append(shape(*of)) or asked[-1])
    monkeypatch.setattr(type(method), "allocation", lambda _, *of: given.append(of) or Allocation(None, (1,)))
    shared.allocation(0, 0, LONG, parts)
    assert asked == shapes[:1]
    assert given == [(LONG, (1, 2, 2), tuple(Cost(c.fixed + d, c.slot) for c, d in zip(costs, dense, strict=True)))]
    assert dense[0] < dense[1] == dense[2]


def tail_bytes(past: CompressedCache) -> int:
    return sum(sum(layer.tail.bytes().values()) for layer in past.compressed_layers() if layer.tail is not None)


@pytest.mark.parametrize("name", BYTES)
def test_a_budget_that_is_too_small_names_one_that_works(packed_model: Any, name: str) -> None:
    ids = prompt(length=N)
    with pytest.raises(BudgetError, match=r"use at least \d+ bytes") as error:
        filled(packed_model, ids, composed(name, "100B"))
    (needed,) = re.findall(r"use at least (\d+) bytes", str(error.value))
    past = filled(packed_model, ids, composed(name, f"{needed}B"))
    assert prefix_bytes(past) <= int(needed)
    with pytest.raises(BudgetError, match="use"):
        filled(packed_model, ids, composed(name, f"{int(needed) // 2}B"))


@pytest.mark.parametrize(
    "name", ["pyramidkv+spark-p(0.999, recent=pruned)", "adakv+spark-g(4, share=0.99, recent=pruned)"]
)
def test_slots_that_are_larger_than_expected_do_not_make_the_named_bytes_too_few(packed_model: Any, name: str) -> None:
    test_a_budget_that_is_too_small_names_one_that_works(packed_model, name)


def test_no_head_is_left_without_a_slot() -> None:
    """One slot per head is the least where a method always keeps nothing; what cannot hold that is refused."""
    model = build("llama")
    model.set_attn_implementation("winnow")

    def slots(budget: int) -> list[list[int]]:
        cache = CompressedCache(model, winnow.method("knorm+spark-p(0.99)+bits(4)", f"{budget}B"))
        with torch.no_grad():
            model(prompt(length=200), past_key_values=cache)
        return cache.stats().slots

    with pytest.raises(BudgetError, match="use at least") as refused:
        slots(672)
    named = re.search(r"at least (\d+) bytes", str(refused.value))
    assert named is not None
    assert all(min(layer) >= 1 for layer in slots(int(named[1])))


@pytest.mark.parametrize("name", BYTES)
def test_budgets_in_which_nearly_everything_fits(packed_model: Any, name: str) -> None:
    """Real sizes decide where the expected size of all slots is below the budget."""
    ids = prompt(length=N)
    everything = prefix_bytes(filled(packed_model, ids, composed(name, "100%")))
    for share in (0.8, 0.9, 0.97, 0.995, 1.0):
        amount = int(share * everything)
        assert prefix_bytes(filled(packed_model, ids, composed(name, f"{amount}B"))) <= amount
    past = filled(packed_model, ids, composed(name, f"{everything * 1.02:.0f}B"))
    assert 0.95 * everything <= prefix_bytes(past) <= everything


def test_bytes_go_further_the_more_is_left_out(prefilled: CompressedCache) -> None:
    amount = f"{LAYERS * HEADS * LONG * (2 * DIM * 4 + 4) // 5}B"
    slots = [
        sum(map(sum, prefilled.compressed_by(composed(name, amount)).stats().slots))
        for name in ("snapkv", "snapkv+spark(0.5)", "snapkv+spark(0.8)", "snapkv+bits(8)", "snapkv+bits(4)")
    ]
    assert slots == sorted(slots)
    assert slots[-1] > 4 * slots[0]


def spent_by(store: Any, amount: int, window: int = 0) -> ByteBudget:
    return ByteBudget("a method", Budget("bytes", amount), Uniform(), store, window)


def test_a_slot_whose_bytes_are_no_binary_number_is_not_lost() -> None:
    """33 / 1.1 is a little less than 30."""
    budget = spent_by(SimpleNamespace(residual=0), 33)
    assert budget.slots(100, [1], [Cost(0.0, 1.1)], 1) == 30


def test_layers_get_bytes_in_proportion_to_what_they_are_expected_to_take() -> None:
    assert spent_by(None, 80).layer_bytes([10, 30], [Cost(0.0, 1.0)] * 2) == (20, 60)


def test_what_no_layer_can_hold_names_the_bytes_of_a_slot_for_each_head() -> None:
    asked: list[int] = []

    def size(view: Any, selection: Selection, window: int, earlier: Any) -> float:
        asked.append(window)
        return 100.0 + 500.0 * len(selection.positions)

    def choose(allocation: Allocation) -> Selection:
        slots = allocation.totals[0]
        return Selection(torch.arange(slots), torch.tensor([0, slots // 2, slots]))

    view: Any = SimpleNamespace(stored=None, keys=torch.empty(2, 10, 1), layer=0)
    allocation = Allocation(SlotPlan(20, (2, 2), 10, 0), (10, 10), (50.0, 50.0), upkeep=10)
    budget = spent_by(SimpleNamespace(bytes=size), 100, window=32)
    with pytest.raises(BudgetError, match="use at least 2285 bytes"):  # 2 % more than both layers' 1120
        budget.fill(choose, view, allocation, 20, None)
    assert set(asked) == {10}  # a window that is longer than the prompt


def test_what_a_layer_leaves_over_is_its_row_s_and_its_cache_s() -> None:
    allocation = Allocation(SlotPlan(9, (1, 1, 1), 10, 0), (3, 3, 3), (10.0, 10.0, 10.0))
    spending = Spending()
    spending.add(0, 0, 4.0)
    twin = copy(spending)
    twin.add(1, 0, 10.0)
    twin.add(0, 1, 3.0)
    assert spending.rest(0, 1, allocation).bytes == (10, 13, 10)
    assert spending.rest(1, 1, allocation).bytes == (10, 15, 10)
    assert twin.rest(1, 1, allocation).bytes == (10, 10, 10)
    assert twin.rest(0, 2, allocation).bytes == (10, 10, 23)
