"""Slots by budget curves: the shares of the table, exact totals, and everything that cannot be used."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winnow
from winnow.allocate import LUKV, SlotPlan
from winnow.allocate.lukv import kept_shares
from winnow.errors import HeadScoresError, MethodError
from winnow.heads import BudgetCurves

LAYERS, HEADS = 3, 2


def curves(seed: int = 0, **facts) -> BudgetCurves:
    """A table whose mean is what it says, as those of least loss are: random orders of heads give up slots."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.rand(LAYERS * HEADS * 400, generator=generator).argsort() % (LAYERS * HEADS)
    weights = torch.rand(LAYERS * HEADS, generator=generator)
    order = steps[(weights[steps] + torch.rand(len(steps), generator=generator)).argsort()]
    kept = torch.stack([torch.bincount(order[len(order) * gone // 100 :], minlength=6) for gone in range(1, 100)])
    return BudgetCurves(1 - kept.view(99, LAYERS, HEADS) / 400, **facts)


@pytest.mark.parametrize("gone", [1, 37, 80, 99])
def test_at_a_share_of_the_table_heads_get_what_it_says(gone: int) -> None:
    table, length = curves(), 400
    total = round(LAYERS * HEADS * length * (100 - gone) / 100)
    slots = LUKV(table).slots(SlotPlan(total, (HEADS,) * LAYERS, length, 0))
    assert torch.equal(slots, ((1 - table.ratios[gone - 1]) * length).round().long())


def test_between_two_shares_the_table_is_straight() -> None:
    table = curves()
    middle = (table.ratios[29] + table.ratios[30]) / 2
    torch.testing.assert_close(kept_shares(table, 30.5), 1 - middle)
    torch.testing.assert_close(kept_shares(table, 99.5), (1 - table.ratios[98]) / 2)
    torch.testing.assert_close(kept_shares(table, 0.25), 1 - table.ratios[0] / 4)
    assert bool((kept_shares(table, 0) == 1).all())
    assert bool((kept_shares(table, 100) == 0).all())


def test_beyond_the_table_all_heads_give_up_what_is_left() -> None:
    shares = torch.linspace(0.01, 0.99, 99).double()[:, None, None]
    table = BudgetCurves(torch.cat([shares, shares**3], dim=2))
    torch.testing.assert_close(kept_shares(table, 99.5), (1 - table.ratios[98]) / 2)
    assert bool((kept_shares(table, 100) == 0).all())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 3), st.integers(1, 50), st.data())
def test_totals_are_exact_and_limits_hold(seed: int, length: int, data: st.DataObject) -> None:
    guaranteed = data.draw(st.integers(0, length))
    total = data.draw(st.integers(6 * guaranteed, 6 * length))
    plan = SlotPlan(total, (HEADS,) * LAYERS, length, guaranteed)
    slots = LUKV(curves(seed)).slots(plan)
    assert int(slots.sum()) == total == sum(LUKV(curves(seed)).layer_totals(plan))
    assert guaranteed <= int(slots.min()) <= int(slots.max()) <= length
    real = kept_shares(curves(seed), 100 * (1 - total / (6 * length))) * length
    if bool((real >= guaranteed).all()):
        assert bool(((slots - real).abs() < 1.5).all())


def test_as_published_every_head_is_rounded_down() -> None:
    table, length = curves(), 97
    plan = SlotPlan(6 * 30, (HEADS,) * LAYERS, length, 2)
    nearest = table.ratios[round(100 * (1 - 30 / 97)) - 1]
    expected = [[max(2, int((1 - float(r)) * length)) for r in layer] for layer in nearest]
    assert LUKV(table, rounding="paper").slots(plan).tolist() == expected


def test_a_method_by_name_reads_a_file(tmp_path: Path) -> None:
    path = curves(scorer="snapkv").save(tmp_path / "curves.safetensors")
    method = winnow.method(f"snapkv+lukv(curves={path})", 20)
    assert winnow.method(str(method)) == method
    assert method.for_model("a-model", (HEADS,) * LAYERS).allocator == LUKV(curves(scorer="snapkv"))
    np.save(tmp_path / "published.npy", curves().ratios.numpy().astype(np.float32))
    published = LUKV(curves=str(tmp_path / "published.npy"))  # type: ignore[arg-type]
    torch.testing.assert_close(published.curves.ratios, curves().ratios, atol=1e-6, rtol=0)


def test_curves_of_another_model_are_told() -> None:
    with pytest.warns(UserWarning, match="budget curves are for owner/one"):
        LUKV(curves(model="owner/one")).for_model("owner/two", (HEADS,) * LAYERS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LUKV(curves(model="owner/one")).for_model("./ONE.gguf", (HEADS,) * LAYERS)


def test_curves_of_a_model_that_has_no_name_may_be_this_one_s() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LUKV(curves()).for_model("owner/two", (HEADS,) * LAYERS)
        LUKV(curves(model="owner/one")).for_model("", (HEADS,) * LAYERS)


def test_what_curves_leave_over_goes_to_heads_in_proportion() -> None:
    """Curves whose mean is not what they say: here everything stays twice."""
    table = BudgetCurves(torch.tensor([[0.7, 0.9]]).expand(99, 1, 2).double())
    assert LUKV(table).slots(SlotPlan(800, (2,), 1000, 0)).tolist() == [[600, 200]]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: LUKV().for_model("a-model", (2, 2)), "winnow heads curves"),
        (lambda: LUKV(curves()).for_model("", (2, 2)), "the model has 2 compressed layers"),
        (lambda: LUKV(curves()).layer_totals(SlotPlan(8, (2, 1, 2), 4, 0)), "1 or 2 KV heads"),
        (lambda: LUKV(curves=3), "must be a file"),  # type: ignore[arg-type]
        (lambda: LUKV(rounding="floor"), "rounding"),  # type: ignore[arg-type]
        (lambda: LUKV(curves="nowhere.safetensors"), "nowhere"),  # type: ignore[arg-type]
        (lambda: LUKV(curves="nowhere.npy"), "nowhere"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_used_is_refused(wrong, said: str) -> None:
    with pytest.raises((MethodError, HeadScoresError), match=said):
        wrong()
