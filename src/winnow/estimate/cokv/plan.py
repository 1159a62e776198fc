"""Coalitions in numbered batches, as an item's batch number stands for them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from winnow.estimate.cokv.exact import all_coalitions
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.cokv.settings import PAIRS
from winnow.estimate.errors import ShapleyError
from winnow.estimate.executors.base import BASELINE

MOST_BATCHES = 2**20
"""Batches that random splits are drawn for, at most."""


class CoalitionPlan(Protocol):
    """The coalitions of every batch. A batch never depends on how many there are."""

    @property
    def pairs(self) -> int:
        """Pairs of coalitions in a batch."""

    @property
    def most_batches(self) -> int:
        """The number of batches that there can be."""

    def coalitions(self, batch: int) -> Tensor:
        """[2P, n] bool: P pairs, each a coalition directly followed by its rest; of `BASELINE` all players and none."""

    def config(self) -> dict[str, Any]:
        """Everything it depends on, as plain JSON values."""


@dataclass(frozen=True)
class Sampled:
    """Random splits: batch b holds splits b·P to (b + 1)·P - 1."""

    splits: PlayerSplits
    pairs: int = PAIRS

    def __post_init__(self) -> None:
        if self.pairs < 1 or self.pairs % self.splits.cycle:
            raise ShapleyError(
                f"A batch of {self.pairs} pairs cannot be divided evenly among both halves of the samples and all "
                f"{len(self.splits.sizes)} sizes: take a multiple of {self.splits.cycle}."
            )

    def coalitions(self, batch: int) -> Tensor:
        if batch == BASELINE:
            return all_and_none(self.splits.players)
        return self.splits.coalitions(range(batch * self.pairs, (batch + 1) * self.pairs))

    def config(self) -> dict[str, Any]:
        splits = self.splits
        return {**asdict(splits), "sizes": list(splits.sizes), "pairs": self.pairs}

    @property
    def most_batches(self) -> int:
        return MOST_BATCHES

    def batches(self, samples: int) -> int:
        """Whole batches that hold at least so many splits. Raises ShapleyError for more than anyone evaluates."""
        found = -(-samples // self.pairs)
        if found > MOST_BATCHES:
            raise ShapleyError(f"{samples:,} samples are too many: take at most {MOST_BATCHES * self.pairs:,}.")
        return found


@dataclass(frozen=True)
class Exhaustive:
    """All coalitions of a few players: pair c is coalition c and coalition 2^n - 1 - c, its rest."""

    players: int
    pairs: int = PAIRS

    def __post_init__(self) -> None:
        if self.pairs < 1 or 2 ** (self.players - 1) % self.pairs:
            raise ShapleyError(f"{self.pairs} pairs a batch do not divide {2 ** (self.players - 1)} pairs evenly.")

    def coalitions(self, batch: int) -> Tensor:
        if batch == BASELINE:
            return all_and_none(self.players)
        first = all_coalitions(self.players)[batch * self.pairs : (batch + 1) * self.pairs]
        return torch.stack([first, ~first], dim=1).flatten(0, 1)

    def config(self) -> dict[str, Any]:
        return {"players": self.players, "sizes": "all", "pairs": self.pairs}

    @property
    def batches(self) -> int:
        """The number of batches."""
        return int(2 ** (self.players - 1)) // self.pairs

    @property
    def most_batches(self) -> int:
        return self.batches

    def utilities(self, pairs: Tensor) -> Tensor:
        """[2^n] in the order of `all_coalitions`, from utilities [2^(n-1), 2] of all pairs."""
        return torch.cat([pairs[:, 0], pairs[:, 1].flip(0)])


def all_and_none(players: int) -> Tensor:
    """[2, n] bool: the coalition of all players, and that of none."""
    return torch.tensor([[True], [False]], device="cpu").expand(2, players)
