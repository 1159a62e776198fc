"""Budgets: what users write, and how many slots it buys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.allocate import Uniform
from winnow.budget import Budget, readable_bytes
from winnow.composition.byte_budget import ByteBudget
from winnow.errors import BudgetError, WinnowError
from winnow.store import Cost, Dense

HEADS, BYTES = (4, 4), (100.0, 100.0)


def slots(value: int | str | None, length: int = 1000, guaranteed: int = 8) -> int:
    budget = Budget.parse(value)
    if budget.unit == "bytes":
        return in_bytes(budget).slots(length, HEADS, [Cost(0.0, size) for size in BYTES], guaranteed)
    return budget.slots(length, HEADS, guaranteed)


def in_bytes(budget: Budget) -> ByteBudget:
    return ByteBudget("some-method", budget, Uniform(), Dense(), 0)


@pytest.mark.parametrize(
    ("value", "unit", "amount"),
    [
        (128, "tokens", 128),
        ("128", "tokens", 128),
        (np.int64(128), "tokens", 128),
        ("2%", "percent", 2),
        (" 0.5 % ", "percent", 0.5),
        (f"{100 / 3}%", "percent", 100 / 3),
        ("0.00001%", "percent", 0.00001),
        ("100%", "percent", 100),
        ("64MiB", "bytes", 64 << 20),
        ("64 mib", "bytes", 64 << 20),
        ("64MB", "bytes", 64_000_000),
        ("1.5GiB", "bytes", 3 << 29),
        ("2GB", "bytes", 2_000_000_000),
        ("512KiB", "bytes", 512 << 10),
        ("512kB", "bytes", 512_000),
        ("4096B", "bytes", 4096),
        (None, "everything", 0),
    ],
)
def test_what_users_write(value: int | str | None, unit: str, amount: float) -> None:
    budget = Budget.parse(value)
    assert (budget.unit, budget.amount) == (unit, amount)
    if value is not None:
        assert Budget.parse(str(budget)) == budget


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "positive"),
        (-5, "positive"),
        ("0%", "positive"),
        ("0.4B", "positive"),
        ("-1MiB", "positive"),
        ("101%", "at most '100%'"),
        (0.02, "write '2%'"),
        ("0.02", "write '2%'"),
        ("many", "tokens per KV head"),
        ("12 parsecs", "tokens per KV head"),
        ("1.2.3%", "tokens per KV head"),
        ("", "tokens per KV head"),
        (True, "tokens per KV head"),
        ([1], "tokens per KV head"),
    ],
)
def test_what_cannot_be_read(value: object, message: str) -> None:
    with pytest.raises(BudgetError, match=message):
        Budget.parse(value)  # type: ignore[arg-type]


def test_budget_errors_are_value_errors_of_the_package() -> None:
    with pytest.raises(WinnowError):
        Budget.parse(0)
    with pytest.raises(ValueError, match="positive"):
        Budget.parse(0)


def test_slots() -> None:
    assert slots(None) == 8000
    assert slots(128) == 8 * 128
    assert slots(5000) == 8000  # more than the prompt has
    assert slots("2%") == 160
    assert slots("100%") == 8000
    assert slots("12345B") == 123
    assert slots("1GiB") == 8000


def test_decimal_percentages_are_exact() -> None:
    assert all(slots(f"{tenths / 10}%", length=1000, guaranteed=0) == 8 * tenths for tenths in range(1, 1000))


def test_percentages_of_many_slots_are_exact() -> None:
    assert Budget.parse("64.74%").slots(1_000_000, [1] * 32, 0) == 20_716_800
    assert Budget.parse(f"{300 / 7}%").slots(700, [1], 0) == 300  # written below what was meant
    assert Budget.parse("3.3%").slots(10**9, [8] * 80, 0) == 21_120_000_000
    assert Budget.parse("99.999%").slots(10**9, [8] * 80, 0) == 639_993_600_000


def test_short_prompts_keep_what_is_guaranteed() -> None:
    assert slots("2%", length=50) == 8 * 8
    assert slots("2%", length=5) == 8 * 5
    assert slots("2%", length=5, guaranteed=0) == 8
    assert slots(8, length=5) == 8 * 5


def test_tokens_below_the_guaranteed_are_refused() -> None:
    with pytest.raises(BudgetError, match="use at least 8"):
        Budget.parse(7).check(8, "snapkv")
    Budget.parse(8).check(8, "snapkv")
    Budget.parse("0.1%").check(8, "snapkv")


def test_bytes_below_the_guaranteed_name_the_least() -> None:
    with pytest.raises(BudgetError, match=r"some-method keeps of .* at least 6400 bytes \(6\.25KiB\)"):
        slots("6399B")
    assert slots("6400B") == 64
    with pytest.raises(BudgetError, match="at least 800 bytes"):
        slots("799B", guaranteed=0)


@pytest.mark.parametrize("amount", [1025, 105_000_001, 3 * 2**20 + 1, 2**30 + 1])
def test_bytes_that_are_named_are_enough(amount: int) -> None:
    assert Budget.parse(readable_bytes(amount)).amount >= amount


def test_bytes_of_layers_that_differ() -> None:
    budget, costs = in_bytes(Budget.parse("3000B")), (Cost(0.0, 100.0), Cost(0.0, 200.0))
    assert budget.slots(1000, (1, 1), costs, 1) == 20
    assert budget.fits([10, 10], costs)
    assert not budget.fits([9, 11], costs)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from([17.5, 68.0, 260.0])), min_size=1, max_size=6),
    st.integers(1, 5000),
    st.integers(0, 64),
    st.integers(1, 10**7),
)
def test_bytes_are_never_exceeded(layers: list[tuple[int, float]], length: int, guaranteed: int, amount: int) -> None:
    heads, sizes = zip(*layers, strict=True)
    sizes = (sizes[0],) * len(heads)
    guaranteed = min(guaranteed, length)
    try:
        costs = [Cost(0.0, size) for size in sizes]
        total = in_bytes(Budget.parse(f"{amount}B")).slots(length, heads, costs, guaranteed)
    except BudgetError:
        assert amount < sum(heads) * max(1, guaranteed) * sizes[0]
        return
    assert sum(heads) * max(1, guaranteed) <= total <= sum(heads) * length
    assert total * sizes[0] <= amount
    assert total == sum(heads) * length or (total + 1) * sizes[0] > amount


@pytest.mark.parametrize(
    "value", ["9" * 400, "9" * 5000, 10**400, 10**5000, "9" * 300 + "GB", "9" * 400 + "%"], ids=range(6)
)
def test_numbers_that_nothing_can_count_are_refused(value):
    with pytest.raises(BudgetError, match="more than any prompt has"):
        Budget.parse(value)


@pytest.mark.parametrize("value", ["-" + "9" * 400, "-" + "9" * 400 + "GB", -(10**5000)], ids=range(3))
def test_numbers_far_below_zero_are_not_positive(value):
    with pytest.raises(BudgetError, match="must be positive"):
        Budget.parse(value)


@pytest.mark.parametrize("value", ["9" * 300, "9" * 290 + "GB", 10**300], ids=range(3))
def test_large_numbers_are_budgets(value):
    assert Budget.parse(value).amount > 10**298
    assert str(Budget.parse(value))
