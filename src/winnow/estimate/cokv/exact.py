"""Shapley values of small games, from the utilities of all coalitions."""

from __future__ import annotations

from math import comb

import torch
from torch import Tensor

from winnow.estimate.errors import ShapleyError

MOST_PLAYERS = 16


def all_coalitions(players: int) -> Tensor:
    """[2^n, n] bool: player i is in coalition c where bit i of c is set, so that 2^n - 1 - c is the rest of c.

    Raises ShapleyError for more than 16 players.
    """
    if not 1 <= players <= MOST_PLAYERS:
        raise ShapleyError(
            f"{players} players have 2^{players} coalitions; exact values are for 1 to {MOST_PLAYERS} players, "
            "samples for more."
        )
    numbers = torch.arange(2**players, device="cpu")
    return (numbers[:, None] >> torch.arange(players, device="cpu") & 1).bool()


def exact_shapley(utilities: Tensor) -> Tensor:
    """[n] float64 Shapley values (Eq. 1) from utilities [2^n] in the order of `all_coalitions`."""
    masks, values = _game(utilities)
    players = masks.shape[1]
    sizes = masks.sum(dim=1)
    weights = torch.tensor(
        [1 / (players * comb(players - 1, size)) for size in range(players)], dtype=torch.float64, device="cpu"
    )
    found = []
    for player in range(players):
        without = (~masks[:, player]).nonzero().flatten()
        marginal = values[without + 2**player] - values[without]
        found.append((weights[sizes[without]] * marginal).sum())
    return torch.stack(found)


def exact_strata(utilities: Tensor) -> Tensor:
    """[n, n] float64: SV[i, j] of Eq. 3 in row i, column j - 1; their mean over j is the Shapley value (Eq. 2)."""
    masks, values = _game(utilities)
    players = masks.shape[1]
    complementary = values - values.flip(0)
    sizes = masks.sum(dim=1)
    found = torch.zeros(players, players, dtype=torch.float64, device="cpu")
    for size in range(1, players + 1):
        members = masks[sizes == size].double()
        found[:, size - 1] = members.T @ complementary[sizes == size] / comb(players - 1, size - 1)
    return found


def _game(utilities: Tensor) -> tuple[Tensor, Tensor]:
    players = len(utilities).bit_length() - 1
    if utilities.dim() != 1 or len(utilities) != 2**players:
        raise ShapleyError(f"utilities must be [2^n], one for each coalition, not {list(utilities.shape)}.")
    return all_coalitions(players), utilities.double()
