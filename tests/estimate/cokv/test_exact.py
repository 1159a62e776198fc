"""Exact Shapley values: games with known values, and identities that hold for any game."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.games import Game, additive, exact, gloves, table_game, voting
from winnow.estimate.cokv.exact import all_coalitions, exact_shapley, exact_strata
from winnow.estimate.errors import ShapleyError


@pytest.mark.parametrize(
    ("game", "expected"),
    [
        (additive([0.5, -1.0, 3.0, 0.0]), [0.5, -1.0, 3.0, 0.0]),
        (voting(2, [1, 1, 1]), [1 / 3, 1 / 3, 1 / 3]),
        (voting(3, [2, 1, 1]), [2 / 3, 1 / 6, 1 / 6]),
        (gloves(1), [2 / 3, 1 / 6, 1 / 6]),
        # The apex game: a big player with any small one, or all four small ones together.
        (voting(4, [3, 1, 1, 1, 1]), [3 / 5, 1 / 10, 1 / 10, 1 / 10, 1 / 10]),
    ],
)
def test_exact_values_of_known_games(game: Game, expected: list[float]) -> None:
    torch.testing.assert_close(exact(game, len(expected)), torch.tensor(expected, dtype=torch.float64))


@settings(max_examples=40, deadline=None)
@given(players=st.integers(1, 8), seed=st.integers(0, 1000))
def test_marginal_and_complementary_contributions_agree(players: int, seed: int) -> None:
    """Eq. 1 = Eq. 2, and both share out what all together are worth."""
    utilities = table_game(players, seed)(all_coalitions(players))
    values = exact_shapley(utilities)
    torch.testing.assert_close(exact_strata(utilities).mean(dim=1), values)
    torch.testing.assert_close(values.sum(), utilities[-1] - utilities[0])


@settings(max_examples=30, deadline=None)
@given(players=st.integers(2, 8), seed=st.integers(0, 1000))
def test_sizes_j_and_n_minus_j_say_the_same(players: int, seed: int) -> None:
    """SV[i, n - j] is an increasing linear function of SV[i, j], the same for every player, whatever the game."""
    game, masks = table_game(players, seed), all_coalitions(players)
    means = exact_strata(game(masks))
    u, sizes = game(masks) - game(~masks), masks.sum(dim=1)
    for size in range(1, players):
        average = u[sizes == size].mean()
        expected = (size * means[:, size - 1] - players * average) / (players - size)
        torch.testing.assert_close(means[:, players - size - 1], expected)


def test_exact_values_are_for_few_players() -> None:
    assert len(all_coalitions(16)) == 65536
    with pytest.raises(ShapleyError, match="17 players"):
        all_coalitions(17)
    with pytest.raises(ShapleyError, match=r"\[2\^n\]"):
        exact_shapley(torch.zeros(6))
