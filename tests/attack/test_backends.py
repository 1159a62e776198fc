"""Compositions of every kind, folding or not: the native kernels against the torch reference."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
import torch

from support.attack import seeds
from support.backends import EVICTIONS, STORES, Case, assert_steps_agree, folds, method_of, random_case, strays
from support.families import prompt
from support.instruction_sets import available, needs_native
from support.packed_caches import made
from winnow.kernels import native

pytestmark = [pytest.mark.usefixtures("one_thread"), needs_native]
PAIRS = list(product(EVICTIONS, STORES))
CHUNKS = (50, 2, 3, 1)


@pytest.mark.parametrize("seed", seeds(6, 500))
def test_pairs_of_eviction_and_store(seed: int) -> None:
    """Steps from the same state."""
    # A stride without a common factor with their number: every eviction meets many stores, and none twice.
    eviction, store = PAIRS[seed * 1009 % len(PAIRS)]
    method = method_of(eviction, store, 30)
    ids = prompt(length=sum(CHUNKS), seed=seed)
    assert_steps_agree(made(), Case(method, 3 if folds(method, 3) else None, ids, CHUNKS), native.isa())


@pytest.mark.parametrize("seed", seeds(6, 150))
def test_random_sequences_step_by_step(seed: int) -> None:
    """Steps from the same state, of any length, in any dtype, by any instruction set."""
    rng = Random(seed)
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    assert_steps_agree(made(dtype), random_case(rng, length=150, later=30), rng.choice(available()))


@pytest.mark.parametrize("seed", seeds(1, 8))
def test_random_sequences_to_their_end(seed: int) -> None:
    """Twenty, each backend going on with its own results: all but two stay together."""
    rng = Random(1000 + seed)
    assert sum(strays(made(), random_case(rng), rng.choice(available())) for _ in range(20)) <= 2
