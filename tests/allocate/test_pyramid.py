"""PyramidKV's schedule of layers by hand, exact and as published."""

from __future__ import annotations

import pytest

from winnow.allocate import Pyramid, SlotPlan
from winnow.allocate.pyramid import pyramid, pyramid_as_published
from winnow.errors import MethodError


def test_pyramid_schedule_by_hand() -> None:
    # b = 120, β = 20: lo = 6, hi = 234
    levels = pyramid(120, 10_000, 32, 20)
    assert levels[0] == 234
    assert levels[-1] == pytest.approx(6)
    assert sum(levels) == pytest.approx(32 * 120)
    # hi ≥ N - w: hi = N - w, lo = 2b - hi
    assert pyramid(120, 200, 5, 20) == pytest.approx([200, 160, 120, 80, 40])
    assert pyramid(120, 120, 3, 20) == [120, 120, 120]


def test_pyramid_totals_by_hand() -> None:
    totals = Pyramid().layer_totals(SlotPlan(128 * 8 * 32, (8,) * 32, 10_000, 8))
    assert sum(totals) == 128 * 8 * 32
    assert totals[0] == 8 * (234 + 8)
    assert totals[-1] == 8 * (6 + 8)
    assert totals == sorted(totals, reverse=True)
    # nothing to choose: uniform
    assert Pyramid().layer_totals(SlotPlan(50, (2,), 100, 8)) == [50]


def test_layers_of_more_heads_have_the_schedule_of_each_head() -> None:
    plan = SlotPlan(500_000, (2, 8, 4), 100_000, 8)
    each = [total / heads for total, heads in zip(Pyramid().layer_totals(plan), plan.heads, strict=True)]
    levels = pyramid(500_000 / 14 - 8, 100_000 - 8, 3, 20)
    found = [one - level for one, level in zip(each, levels, strict=True)]
    assert max(found) - min(found) < 1


def test_pyramid_as_published_drifts() -> None:
    levels = pyramid_as_published(120, 10_000, 32, 20)
    assert levels == [234 - 7 * layer for layer in range(32)]
    totals = Pyramid(rounding="paper").layer_totals(SlotPlan(128 * 32, (1,) * 32, 10_000, 8))
    assert totals == [level + 8 for level in levels]
    assert sum(totals) - 128 * 32 == 176
    # the authors' code: a prompt shorter than 2b gets uniform layers
    assert Pyramid(rounding="paper").layer_totals(SlotPlan(128 * 32, (1,) * 32, 239, 8)) == [128] * 32
    levels = pyramid_as_published(120, 232, 32, 20)
    totals = Pyramid(rounding="paper").layer_totals(SlotPlan(128 * 32, (1,) * 32, 240, 8))
    assert totals == [level + 8 for level in levels]
    assert len(set(totals)) > 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Pyramid(beta=0.5),
        lambda: Pyramid(beta="steep"),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameters_are_refused(wrong: object) -> None:
    with pytest.raises(MethodError, match="must be"):
        wrong()  # type: ignore[operator]
