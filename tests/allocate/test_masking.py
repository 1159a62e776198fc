"""Masking: the heads that keep only what is guaranteed."""

from __future__ import annotations

from itertools import chain

import pytest

import winnow
from support.families import prompt
from support.head_scores import table
from support.slots import slots_of
from support.small_caches import made
from winnow.allocate import Masking, SlotPlan
from winnow.errors import MethodError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Masking(table([[1, 2]]), count=3), "count must be at most the number of heads, 2"),
        (lambda: Masking(table([[1, 2]]), which="first"), "which must be one of"),
        (lambda: Masking(table([[1, 2]]), which="random"), "which=random uses no scores"),
        (lambda: Masking(which="random", seed=-1), "seed must be a whole number between 0"),
        (lambda: Masking(which="random", count=5).for_model("", (2, 2)), "at most the number of heads, 4"),
        (lambda: Masking(which="random").for_model("odd", (2, 4)), "odd has layers of 2 and 4 KV heads"),
    ],
)
def test_wrong_parameters_are_refused(make: object, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        make()  # type: ignore[operator]


def test_masking() -> None:
    scores = table([[1, 5], [3, 5]])
    plan = SlotPlan(4 * 50, (2, 2), 50, 8)
    assert slots_of(Masking(scores, count=0), plan) == [[50, 50], [50, 50]]
    assert slots_of(Masking(scores, count=1), plan) == [[50, 8], [50, 50]]
    assert slots_of(Masking(scores, count=3), plan) == [[50, 8], [8, 8]]
    assert slots_of(Masking(scores, count=2, which="lowest"), plan) == [[8, 50], [8, 50]]
    assert slots_of(Masking(scores, count=4), plan) == [[8, 8], [8, 8]]


def test_random_heads_need_no_scores() -> None:
    plan = SlotPlan(32 * 50, (8,) * 4, 50, 8)
    drawn = [slots_of(Masking(which="random", count=16, seed=seed).for_model("", (8,) * 4), plan) for seed in range(8)]
    for slots in drawn:
        assert sorted(each for layer in slots for each in layer) == [8] * 16 + [50] * 16
    assert len({str(slots) for slots in drawn}) == 8
    # The first 16 of a larger number: rows of a table for several numbers mask the same heads and more.
    more = slots_of(Masking(which="random", count=24), plan)
    assert all(few == 50 or many == 8 for few, many in zip(chain(*drawn[0]), chain(*more), strict=True))
    assert slots_of(Masking(which="random", count=16), SlotPlan(32 * 90, (8,) * 4, 90, 8)) == [
        [8 if each == 8 else 90 for each in layer] for layer in drawn[0]
    ]


def test_random_heads_are_masked_by_name() -> None:
    model = made()
    ids = prompt(length=40)
    context = winnow.compress(model, ids, "streamingllm(sinks=0,recent=8)+masking(count=3,which=random,seed=2)")
    kept = [slots for layer in context.cache().stats().slots for slots in layer]
    assert sorted(kept) == [8] * 3 + [40] * (len(kept) - 3)
