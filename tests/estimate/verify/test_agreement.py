"""True tables agree with fresh scores, changed ones do not."""

from __future__ import annotations

from itertools import accumulate
from math import comb

import pytest
import torch

from support.tables import swapped
from winnow.estimate.verify.agreement import Fresh, _largest_of, check_agreement
from winnow.heads import HeadScores


def test_true_tables_pass_whatever_the_errors_and_changed_ones_fail():
    generator = torch.Generator().manual_seed(3)
    table = HeadScores(torch.rand(4, 4, generator=generator, dtype=torch.float64) ** 3, "headkv-er")
    errors = torch.full((4, 4), 0.02, dtype=torch.float64)

    def fresh():
        return Fresh(table.values + errors * torch.randn(4, 4, generator=generator, dtype=torch.float64), errors, 49)

    assert not any(check_agreement(table, fresh(), independent=True).failures for _ in range(20))
    order = table.values.flatten().argsort()
    high, low = (divmod(int(place), 4) for place in (order[-1], order[0]))
    found = check_agreement(swapped(table, high, low), fresh(), independent=True)
    assert found.place in (high, low)
    assert any("deviation" in failure for failure in found.failures)


def test_scores_without_error_agree_up_to_rounding():
    table = HeadScores(torch.rand(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), "headkv-r")
    none = torch.zeros(4, 4, dtype=torch.float64)
    assert not check_agreement(table, Fresh(table.values + 1e-7, none, 9), independent=False).failures
    assert check_agreement(table, Fresh(table.values + 1e-2, none, 9), independent=False).failures


@pytest.mark.parametrize("layers", [1, 40])
def test_the_heads_inside_are_judged_in_models_of_any_size(layers):
    table = HeadScores(torch.rand(layers, 40, generator=torch.Generator().manual_seed(0)), "cokv")
    errors = torch.full((layers, 40), 0.02, dtype=torch.float64)
    found = check_agreement(table, Fresh(table.values, errors, 49), independent=True)
    assert found.inside == (1.0, fewest_inside(40 * layers) / (40 * layers))


def fewest_inside(heads):
    """By whole numbers: at 95 % each, fewer than so many heads are inside once in ten thousand times."""
    ways = accumulate(comb(heads, inside) * 19**inside for inside in range(heads + 1))
    return next(inside for inside, count in enumerate(ways) if 10_000 * count > 20**heads)


def test_errors_from_few_numbers_allow_larger_deviations() -> None:
    """Student's distribution instead of the normal one."""
    found = [_largest_of(64, freedom) for freedom in (30, 100, 10**9)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 1.1 * found[2]
