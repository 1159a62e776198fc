"""Estimates from samples against exact values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.games import additive, exact, sampled, table_game, voting
from winnow.estimate.cokv.estimator import Estimate, estimate_values, sliced, strata
from winnow.estimate.cokv.exact import all_coalitions, exact_strata
from winnow.estimate.cokv.sampling import PlayerSplits, strata_of
from winnow.estimate.errors import ShapleyError
from winnow.heads.compare import common_top


@settings(max_examples=30, deadline=None)
@given(players=st.integers(2, 7), seed=st.integers(0, 1000), data=st.data())
def test_expectation_is_exact(players: int, seed: int, data: st.DataObject) -> None:
    """Every coalition of a size once is the expectation over random ones, in the size's stratum and the rest's."""
    size = data.draw(st.integers(1, players))
    game = table_game(players, seed)
    masks = all_coalitions(players)
    first = masks[masks.sum(dim=1) == size]
    expected = exact_strata(game(masks))
    u = game(first) - game(~first)
    for found, stratum in strata(first, u).items():
        torch.testing.assert_close(stratum.means, expected[:, found - 1])


def test_all_sizes_give_the_shapley_value() -> None:
    players, game = 5, table_game(5, 1)
    masks = all_coalitions(players)[1:]
    found = strata(masks, game(masks) - game(~masks))
    torch.testing.assert_close(sliced(found), exact(game, players))


def test_both_parts_count_with_their_sign() -> None:
    first = torch.tensor([[True, False, False], [False, True, False], [False, False, True]])
    found = strata(first, torch.tensor([1.0, 2.0, 6.0]))
    assert found[1].means.tolist() == [1, 2, 6]
    assert found[1].counts.tolist() == [1, 1, 1]
    assert found[2].means.tolist() == [-4, -3.5, -1.5]
    assert found[2].counts.tolist() == [2, 2, 2]
    torch.testing.assert_close(found[2].variances, torch.tensor([8.0, 12.5, 0.5], dtype=torch.float64))
    assert sliced(found).tolist() == [-1.5, -0.75, 2.25]


@pytest.mark.parametrize("sizes", [(4,), (1, 2, 3, 4), (2, 4, 6, 8)])
def test_estimates_are_within_their_margins(sizes: tuple[int, ...]) -> None:
    """About 95% of the values of many estimates lie within the 95% margin."""
    players, game = 8, table_game(8, 3)
    expected = exact_strata(game(all_coalitions(players)))
    target = expected[:, [size - 1 for size in strata_of(sizes, players)]].mean(dim=1)
    inside = []
    for seed in range(25):
        found = sampled(game, PlayerSplits(players, sizes, seed), 960)
        inside.append(((found.values - target).abs() <= found.margin()).double())
    assert 0.88 < float(torch.stack(inside).mean()) < 0.99


def test_more_samples_bring_smaller_errors_and_agreement() -> None:
    game = voting(9, [1, 2, 3, 4, 1, 2, 3, 4])
    few, many = (sampled(game, PlayerSplits(8, (4,), 0), count) for count in (40, 4000))
    assert many.errors.max() < few.errors.max() / 5
    assert many.overlap >= few.overlap
    assert many.samples == 4000
    torch.testing.assert_close(many.values, (many.halves[0] + many.halves[1]) / 2)


def test_the_spread_of_the_halves_is_the_error_of_their_mean() -> None:
    """By hand: differences of 1 and 2 between the halves, which the mean of both is half as far from."""
    halves = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 1.0])
    found = Estimate(values=sum(halves) / 2, errors=torch.ones(2), halves=halves, samples=4)
    assert found.spread == pytest.approx(((1 + 4) / 2) ** 0.5 / 2)


def test_a_player_without_a_sample_is_an_error() -> None:
    with pytest.raises(ShapleyError, match=r"player \d+ was in no sampled coalition of 1 players"):
        sampled(additive([1.0] * 16), PlayerSplits(16, (1,), 0), 8)


def test_utilities_that_are_all_the_same_are_an_error() -> None:
    with pytest.raises(ShapleyError, match="metric is 1 for all 16 coalitions"):
        sampled(lambda masks: torch.ones(len(masks)), PlayerSplits(4, (2,), 0), 8)
    with pytest.raises(ShapleyError, match="cannot be halved"):
        estimate_values(torch.ones(1, 4, dtype=torch.bool), torch.tensor([[1.0, 0.0]]))
    with pytest.raises(ShapleyError, match=r"utilities \[3, 2\]"):
        estimate_values(torch.ones(3, 4, dtype=torch.bool), torch.zeros(3))


def test_one_sample_has_no_margin() -> None:
    found = sampled(additive([1.0, 2.0]), PlayerSplits(2, (1,), 0), 2)
    assert torch.isinf(found.errors).all()
    with pytest.raises(ShapleyError, match="confidence"):
        found.margin(1.0)


def test_common_top() -> None:
    a, b = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([4.0, 1.0, 3.0, 2.0])
    assert common_top(a, a, 2) == 1
    assert common_top(a, b, 2) == 0.5
    assert common_top(a, b, 3) == 2 / 3
    # Ties go to the lower index, so constant values agree with themselves.
    assert common_top(torch.zeros(4), torch.zeros(4), 2) == 1


@settings(max_examples=20, deadline=None)
@given(players=st.integers(2, 7), seed=st.integers(0, 1000), data=st.data())
def test_the_first_parts_alone_are_algorithm_1(players: int, seed: int, data: st.DataObject) -> None:
    """Lines 1 to 13 of the paper's Algorithm 1, written out."""
    sizes = data.draw(st.lists(st.integers(1, players), min_size=1, max_size=3, unique=True))
    game = table_game(players, seed)
    first = PlayerSplits(players, tuple(sizes), seed).first_parts(range(120 * len(sizes)))
    total = [[0.0] * (players + 1) for _ in range(players)]
    count = [[0] * (players + 1) for _ in range(players)]
    for mask in first:
        chosen = mask.nonzero().flatten().tolist()
        u = float(game(mask[None]) - game(~mask[None]))
        for player in chosen:
            total[player][len(chosen)] += u
            count[player][len(chosen)] += 1
    means = [[total[player][size] / count[player][size] for size in sizes] for player in range(players)]
    expected = [sum(each) / len(sizes) for each in means]
    found = sliced(strata(first, game(first) - game(~first), "first"))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_sizes_beyond_one_half_can_change_the_order() -> None:
    """The example of docs/shapley.md: per size n - j changes no order, in the mean over several sizes it can."""
    worth = {(0,): 0.4, (0, 1): 0.72, (1, 2): 0.36, (1, 3): 0.36}
    masks = all_coalitions(4)
    utilities = torch.tensor([worth.get(tuple(mask.nonzero().flatten().tolist()), 0.0) for mask in masks]).double()
    values = exact_strata(utilities)
    for size in (1, 2, 3):
        order = values[:, size - 1].argsort(stable=True)
        assert torch.equal(values[order, 3 - size].sort().values, values[order, 3 - size])
    first, both = (values[:2, [size - 1 for size in sizes]].mean(dim=1) for sizes in ((1, 2), (1, 2, 3)))
    torch.testing.assert_close(first, torch.tensor([0.2, 0.24]).double())
    torch.testing.assert_close(both, torch.tensor([0.4 / 3, 0.104 / 0.9]).double())
    assert first[0] < first[1]
    assert both[0] > both[1]


def test_a_margin_has_its_confidence_on_both_sides_together() -> None:
    errors = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = Estimate(errors, errors, (errors, errors), 4)
    assert found.margin().tolist() == pytest.approx([1.959964, 2 * 1.959964], abs=1e-5)
    assert found.margin(0.6827).tolist() == pytest.approx([1.0, 2.0], abs=1e-3)
