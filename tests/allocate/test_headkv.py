"""HeadKV (Eq. 4) by hand, by its formula, and its published table."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import winnow
from support.head_scores import table
from support.published import DATA, needs_data
from support.slots import slots_of
from winnow import HeadScores
from winnow.allocate import HeadKV, SlotPlan
from winnow.allocate.headkv import headkv_as_published
from winnow.errors import MethodError


def test_headkv_by_hand() -> None:
    # b = 20 - 4 = 16, β = 2: everyone keeps 4 + 8; the pool of 8·4 goes by 1/8, 1/8, 1/4, 1/2
    plan = SlotPlan(80, (2, 2), 1000, 4)
    assert slots_of(HeadKV(table([[1, 1], [2, 4]]), beta=2), plan) == [[16, 16], [20, 28]]
    # β = 1: scores decide alone; a large β: nearly uniform
    assert slots_of(HeadKV(table([[0, 0], [0, 1]]), beta=1), plan) == [[4, 4], [4, 68]]
    assert slots_of(HeadKV(table([[1, 1], [2, 4]]), beta=1000), plan) == [[20, 20], [20, 20]]


def test_headkv_gives_what_does_not_fit_to_others_by_their_scores() -> None:
    plan = SlotPlan(80, (2, 2), 30, 4)
    # without the limit [[4, 4], [25.3, 46.7]]; the 16.7 too many go to the only other head with a score
    slots = slots_of(HeadKV(table([[0, 0], [1, 2]]), beta=1), plan)
    assert slots[1] == [30, 30]
    assert sum(slots[0]) == 20
    plan = SlotPlan(60, (2, 2), 30, 4)
    # without the limit 4 + [11, 11, 22, 0]; nothing is cut
    assert slots_of(HeadKV(table([[1, 1], [2, 0]]), beta=1), plan) == [[15, 15], [26, 4]]


def test_what_does_not_fit_is_divided_in_proportion() -> None:
    # without the limit [140, 40, 20]; the 40 too many go by 2 to 1
    assert slots_of(HeadKV(table([[7, 2, 1]]), beta=1), SlotPlan(200, (3,), 100, 0)) == [[100, 67, 33]]


def test_headkv_as_published_by_hand() -> None:
    # β = 3: 10 // 3 of each of two heads are divided, 10 - 3 stay
    assert headkv_as_published(torch.tensor([[0.6, 0.4]]), 10, 3).tolist() == [[11, 9]]


@pytest.mark.parametrize("beta", [1.005, 1.2, 2, 10])
def test_headkv_equals_its_formula_where_nothing_is_cut(beta: float) -> None:
    rng = np.random.default_rng(0)
    values = rng.random((6, 4))
    plan = SlotPlan(24 * 100 + 7, (4,) * 6, 10_000, 8)
    mean = plan.slots / 24 - 8
    expected = 8 + mean - mean / beta + values / values.sum() * mean / beta * 24
    slots = np.array(slots_of(HeadKV(HeadScores(torch.from_numpy(values), "x"), beta=beta), plan))
    assert slots.sum() == plan.slots
    assert (abs(slots - expected) < 1).all()


@needs_data
def test_headkv_published_table_of_llama_3() -> None:
    """One head gets 15,572 slots at 1,024 (8 of them the window's) and β = 1.005; at 2k tokens 43 % of all are lost."""
    path = DATA / "headkv_scores" / "Meta-Llama-3-8B-Instruct_retrieval_reasoning_heads.json"
    values = torch.zeros(32, 32, dtype=torch.float64)
    for name, runs in json.loads(path.read_text()).items():
        layer, head = map(int, name.split("-"))
        values[layer, head] = np.mean(runs)
    published = headkv_as_published(values / values.sum(), 1016, 1.005)
    assert int(published.max()) == 15_572
    assert int(published[15, 30]) == 15_572
    paper = HeadKV(HeadScores(values, "headkv-r2"), beta=1.005, rounding="paper")
    held = sum(paper.layer_totals(SlotPlan(1024 * 1024, (32,) * 32, 2000, 8)))
    assert 0.56 <= held / (1024 * 1024) < 0.57
    assert abs(sum(paper.layer_totals(SlotPlan(1024 * 1024, (32,) * 32, 100_000, 8))) - 1024 * 1024) < 512
    exact = HeadKV(HeadScores(values, "headkv-r2"), beta=1.005)
    assert sum(exact.layer_totals(SlotPlan(1024 * 1024, (32,) * 32, 2000, 8))) == 1024 * 1024


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HeadKV(table([[1, 2]]), beta=0.9), "beta must be a number of at least 1"),
        (lambda: HeadKV(table([[1, 2]]), rounding="up"), "rounding must be one of"),
    ],
)
def test_wrong_parameters_are_refused(make: object, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        make()  # type: ignore[operator]


def test_negative_scores_have_no_shares() -> None:
    with pytest.raises(winnow.WinnowError, match="negative"):
        HeadKV(table([[-1, 2]])).layer_totals(SlotPlan(40, (2,), 100, 4))
