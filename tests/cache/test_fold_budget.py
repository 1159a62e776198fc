"""Budgets in bytes of caches that fold: all that is held counts, at every step."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import winnow
from support.families import prompt
from support.folding import run
from winnow.errors import BudgetError

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = [
    "adakv(window=4)",
    "snapkv(window=3)+bits(4)",
    "h2o",
    "h2o+bits(8)",
    "streamingllm",
    "tova",
    "keydiff",
    "rkv(window=4)",
    "expectedattention",
    "triattention+bits(8)",
    "pyramidkv",
]


def held(cache: winnow.CompressedCache) -> int:
    """Bytes without the plans of decode attention, which the reference kernels work out from what is held."""
    plans = [layer._plan for layer in cache.compressed_layers()]
    return cache.stats().held_bytes - sum(plan.nbytes() for plan in plans if plan is not None)


@given(
    st.sampled_from(NAMES),
    st.integers(40_000, 90_000),
    st.integers(1, 16),
    st.integers(1, 150),
    st.lists(st.one_of(st.just(1), st.integers(1, 60)), min_size=5, max_size=25),
    st.integers(1, 2),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_budget_in_bytes_is_never_exceeded(model, name, amount, every, length, chunks, rows):
    cache = winnow.CompressedCache(model, winnow.method(name, f"{amount}B"), fold_every=every)
    ids = prompt(rows=rows, length=length + sum(chunks))
    at = 0
    for size in (length, *chunks):
        run(model, cache, ids[:, at : at + size], [size])
        at += size
        assert held(cache) <= rows * amount


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_in_bytes_is_used(model, name):
    """Slots fill what dense tokens and their queries leave, but for the last slot of every layer."""
    amount = 60_000
    cache = winnow.CompressedCache(model, winnow.method(name, f"{amount}B"), fold_every=8)
    run(model, cache, prompt(length=400), [250, *[1] * 50, 60, *[1] * 40])
    assert 0.97 * amount <= held(cache) <= amount


@pytest.mark.parametrize("name", ["adakv(window=4)", "h2o", "snapkv(window=3)+bits(4)"])
def test_the_error_names_bytes_that_are_enough(model, name):
    ids = prompt(length=120)
    with pytest.raises(BudgetError, match=r"\d+KiB.* of it are for tokens that are dense") as error:
        run(model, winnow.CompressedCache(model, winnow.method(name, "9000B"), fold_every=20), ids, [40])
    (needed,) = re.findall(r"use at least (\d+) bytes", str(error.value))
    cache = winnow.CompressedCache(model, winnow.method(name, f"{needed}B"), fold_every=20)
    run(model, cache, ids, [40, *[1] * 80])
    assert held(cache) <= int(needed)


def test_without_folding_a_budget_in_bytes_is_the_prefix(model):
    cache = winnow.CompressedCache(model, winnow.method("snapkv", "60000B"))
    run(model, cache, prompt(length=300), [250, *[1] * 50])
    stats = cache.stats()
    assert stats.tail_bytes == 50 * 3 * 2 * 2 * 16 * 4
    lengths = 3 * 8
    assert 0.99 * 60_000 <= held(cache) - stats.tail_bytes - stats.reserve_bytes - lengths <= 60_000
