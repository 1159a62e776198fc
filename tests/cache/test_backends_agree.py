"""Native kernels and the torch reference keep the same tokens and give the same logits, whatever the method."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from support.backends import EVICTIONS, STORES, Case, assert_steps_agree, folds, method_of, random_case, strays
from support.families import prompt
from support.instruction_sets import ISAS, available, needs_native
from support.packed_caches import made
from support.turns import one_in
from winnow.kernels import native

pytestmark = [pytest.mark.usefixtures("one_thread"), needs_native]
EVERY = 3
CHUNKS = (70, 1, 2, 3, 1)


def case_of(eviction: str, store: str, every: int | None) -> Case:
    ids = prompt(length=sum(CHUNKS), seed=STORES.index(store))
    return Case(method_of(eviction, store, 40), every, ids, CHUNKS)


def case_of_turn(store: str, every: int | None) -> Case:
    """A store with the eviction whose turn it is."""
    return case_of(EVICTIONS[STORES.index(store) % len(EVICTIONS)], store, every)


# Seven kinds of bits take turns beside every choice of channels, so that all of these are among one in three.
@pytest.mark.parametrize("store", one_in(3, STORES, at=1))
def test_steps_from_the_same_state_agree(packed_model: Any, store: str) -> None:
    """With folding, where a method can fold."""
    case = case_of_turn(store, EVERY)
    assert_steps_agree(packed_model, case if folds(case.method, EVERY) else case._replace(every=None), native.isa())


@pytest.mark.parametrize("store", one_in(3, STORES))
def test_steps_that_fold_nothing_agree(packed_model: Any, store: str) -> None:
    assert_steps_agree(packed_model, case_of_turn(store, None), native.isa())


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_agrees(packed_model: Any, isa: str) -> None:
    if isa not in available():
        pytest.skip(f"no {isa} here")
    for store in ("spark(0.5)+bits(2)", "spark(0.8, values=0.5)+mixedbits(5)", "think(0.5)+bits(8)"):
        assert_steps_agree(packed_model, case_of("adakv(window=4)", store, EVERY), isa)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_models_of_sixteen_bits_agree(dtype: torch.dtype) -> None:
    for store in ("spark(0.5)+bits(2)", "spark-p(0.9)+bits(4)", "kivi(4)"):
        case = case_of("snapkv(window=4)", store, EVERY)
        assert_steps_agree(made(dtype), case if folds(case.method, EVERY) else case._replace(every=None), native.isa())


@pytest.mark.parametrize(("cases", "most"), [(12, 1), pytest.param(30, 2, marks=pytest.mark.slow)])
def test_sequences_that_go_their_own_ways_stay_together(packed_model: Any, cases: int, most: int) -> None:
    """All but a few, in which a number of a new slot lies, within rounding, where two integers meet."""
    stores = [store for store in STORES if store.startswith("spark(") and store.endswith("bits(2)")]
    rng = Random(0)
    drawn = [random_case(rng, stores, later=24) for _ in range(cases)]
    assert sum(strays(packed_model, case, native.isa()) for case in drawn if case.every) <= most
