"""Games with known or any utilities, and estimates of their players' values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from winnow.estimate.cokv.estimator import estimate_values
from winnow.estimate.cokv.exact import all_coalitions, exact_shapley
from winnow.estimate.cokv.sampling import PlayerSplits

Game = Callable[[Tensor], Tensor]
"""Coalitions [C, n] bool -> utilities [C] float64."""


def additive(weights: list[float]) -> Game:
    return lambda masks: masks.double() @ torch.tensor(weights, dtype=torch.float64)


def voting(quota: int, votes: list[int]) -> Game:
    return lambda masks: (masks.long() @ torch.tensor(votes) >= quota).double()


def gloves(left: int) -> Game:
    return lambda masks: torch.minimum(masks[:, :left].sum(1), masks[:, left:].sum(1)).double()


def table_game(players: int, seed: int) -> Game:
    """Any utility for any coalition."""
    values = torch.rand(2**players, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return lambda masks: values[(masks.long() << torch.arange(masks.shape[1])).sum(1)]


def exact(game: Game, players: int) -> Tensor:
    return exact_shapley(game(all_coalitions(players)))


def pair_utilities(game: Game, first: Tensor) -> Tensor:
    return torch.stack([game(first), game(~first)], dim=1)


def sampled(game: Game, splits: PlayerSplits, samples: int):
    first = splits.first_parts(range(samples))
    return estimate_values(first, pair_utilities(game, first))
