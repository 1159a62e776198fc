"""Random splits of players: pure functions of seed and index, fair, balanced where asked for."""

from __future__ import annotations

from itertools import combinations
from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.games import additive, sampled, voting
from winnow.estimate.cokv.exact import all_coalitions, exact_strata
from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.sampling import PlayerSplits, default_sizes, strata_of
from winnow.estimate.errors import ShapleyError


def test_a_split_depends_on_seed_and_index_alone() -> None:
    splits = PlayerSplits(12, (3, 6), seed=4)
    many = splits.first_parts(range(40))
    assert torch.equal(splits.first_parts([17, 3])[1], many[3])
    assert not torch.equal(PlayerSplits(12, (3, 6), seed=5).first_parts(range(40)), many)
    assert [int(mask.sum()) for mask in many[:8]] == [3, 3, 6, 6, 3, 3, 6, 6]
    both = splits.coalitions(range(40))
    assert torch.equal(both[1::2], ~both[::2])


def test_every_coalition_of_a_size_is_equally_likely() -> None:
    first = PlayerSplits(5, (2,), seed=0).first_parts(range(5000))
    counts = [int((first[:, a] & first[:, b]).sum()) for a, b in combinations(range(5), 2)]
    assert sum(counts) == 5000
    assert max(abs(count - 500) for count in counts) < 5 * sqrt(500)


def test_sizes_and_seeds() -> None:
    assert default_sizes(256) == (32, 64, 96, 128)
    assert default_sizes(16) == (2, 4, 6, 8)
    assert default_sizes(3) == (1,)
    assert strata_of((2, 4, 8), 16) == (2, 4, 8, 12, 14)
    assert strata_of((3,), 3) == (3,)
    for wrong in ((), (0,), (9,), (2, 2)):
        with pytest.raises(ShapleyError):
            PlayerSplits(8, wrong, 0)
    for seed in (-(2**63) - 1, 2**63):
        with pytest.raises(ShapleyError, match="64 bits"):
            PlayerSplits(8, (4,), seed)
    for players, sizes in ((16, (4,)), (6, (3,)), (52, (26,))):
        with pytest.raises(ShapleyError, match="Balanced splits need"):
            PlayerSplits(players, sizes, 0, balanced=True)
    with pytest.raises(ShapleyError, match="multiple of 4"):
        Sampled(PlayerSplits(8, (2, 4), 0), pairs=6)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), sizes=st.sampled_from([(8,), (2, 8), (2, 4, 6, 8)]))
def test_balanced_splits_treat_all_pairs_alike(seed: int, sizes: tuple[int, ...]) -> None:
    splits = PlayerSplits(16, sizes, seed, balanced=True)
    first = splits.first_parts(range(15 * splits.cycle))
    for half in range(2):
        mine = first[half::2]
        mine = mine[mine.sum(dim=1) == 8]
        assert len(mine) == 15
        sides = mine.long() * 2 - 1
        together = (sides.T @ sides)[~torch.eye(16, dtype=torch.bool)]
        assert together.tolist() == [-1] * 240
    assert not torch.equal(first[::2], first[1::2])


def test_balanced_splits_measure_additive_games_without_error() -> None:
    """One player's worth does not disturb the others': after one block there is nothing left to estimate."""
    weights = [0.3, -1.0, 2.0, 0.0, 5.0, 0.25, 1.0, 1.5]
    game = additive(weights)
    target = exact_strata(game(all_coalitions(8)))[:, 3]
    for seed in range(5):
        found = sampled(game, PlayerSplits(8, (4,), seed, balanced=True), 14)
        torch.testing.assert_close(found.values, target)
        assert found.spread < 1e-12
        assert not torch.allclose(sampled(game, PlayerSplits(8, (4,), seed), 14).values, target, atol=0.05)


def test_balanced_splits_reduce_the_error_of_other_games() -> None:
    game = voting(9, [1, 2, 3, 4, 1, 2, 3, 4])
    target = exact_strata(game(all_coalitions(8)))[:, 3]

    def error(balanced: bool) -> float:
        found = [sampled(game, PlayerSplits(8, (4,), seed, balanced), 56).values for seed in range(40)]
        return float((torch.stack(found) - target).square().mean())

    assert error(balanced=True) < error(balanced=False) / 2


def test_splits_are_rounded_up_to_whole_cycles():
    splits = PlayerSplits(8, (2, 4), 0)
    assert [splits.whole_cycles(count) for count in (1, 4, 5, 8, 9)] == [4, 4, 8, 8, 12]


def test_sizes_are_eighths_as_far_as_they_are_whole():
    assert default_sizes(12) == (1, 3, 4, 6)
    assert default_sizes(30) == (3, 7, 11, 15)
    assert default_sizes(2) == (1,)
