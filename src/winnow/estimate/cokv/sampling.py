"""The coalitions that are evaluated: random splits of all players in two, each a pure function of seed and index."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.estimate.cokv.hadamard import hadamard
from winnow.estimate.errors import ShapleyError
from winnow.estimate.seeds import is_seed
from winnow.heads.cokv_file import Halves

HALVES = 2
"""The samples are two independent halves, whose agreement tells when there are enough."""


@dataclass(frozen=True)
class PlayerSplits:
    """Random splits of n players into a coalition and the rest, without end.

    Split `index` belongs to half index % 2 and to size sizes[index // 2 % len(sizes)]: every block of `cycle` splits
    holds each size once for each half.

    balanced: splits of size n/2 are drawn n - 1 at a time as the rows of a Hadamard matrix whose columns are a random
    order of the players. Each is as random as before, but together they have any two players equally often on the
    same side, so that what one player is worth does not disturb the estimate of another. The samples are no longer
    independent: standard errors that are computed from them as if they were are too large.

    Raises ShapleyError for fewer than two players, for sizes that are no coalition's, for a seed of more than 64 bits,
    and where no such balanced splits exist.
    """

    players: int
    sizes: tuple[int, ...]
    seed: int
    balanced: bool = False

    def __post_init__(self) -> None:
        if self.players < 2:
            raise ShapleyError("A model with a single head has no coalitions, so its heads cannot be scored.")
        if not self.sizes or len(set(self.sizes)) != len(self.sizes):
            raise ShapleyError(f"sizes must be different coalition sizes, at least one, not {list(self.sizes)}.")
        wrong = [size for size in self.sizes if not 1 <= size <= self.players]
        if wrong:
            raise ShapleyError(
                f"The size of a coalition must be between 1 and the number of heads, {self.players}, not {wrong[0]}."
            )
        if not is_seed(self.seed):
            raise ShapleyError(f"A seed must be a whole number of at most 64 bits, not {self.seed}.")
        if self.balanced and (self.players not in {2 * size for size in self.sizes} or hadamard(self.players) is None):
            raise ShapleyError(
                f"Balanced splits need n/2 among the sizes, and a Hadamard matrix of order n = {self.players}, so they "
                "do not work here; leave --balanced out."
            )

    @property
    def cycle(self) -> int:
        """Splits after which halves and sizes are evenly served."""
        return HALVES * len(self.sizes)

    def whole_cycles(self, splits: int) -> int:
        """So many splits, rounded up to whole cycles."""
        return -(-splits // self.cycle) * self.cycle

    def first_parts(self, indices: Sequence[int]) -> Tensor:
        """[M, n] bool: the first j players of a random permutation each (Alg. 1, lines 3-6); others are the rest."""
        masks = torch.zeros(len(indices), self.players, dtype=torch.bool, device="cpu")
        for row, index in enumerate(indices):
            masks[row, self._first_part(index)] = True
        return masks

    def _first_part(self, index: int) -> list[int]:
        size = self.sizes[index // HALVES % len(self.sizes)]
        if self.balanced and 2 * size == self.players:
            return self._balanced_part(index % HALVES, index // self.cycle)
        return random.Random(f"split-{self.seed}-{index}").sample(range(self.players), size)

    def _balanced_part(self, half: int, number: int) -> list[int]:
        """One part of the split of a half of the samples with this number among those of size n/2."""
        block, row = divmod(number, self.players - 1)
        rng = random.Random(f"block-{self.seed}-{half}-{block}")
        order = rng.sample(range(self.players), self.players)
        # In random order, so that a block that is not completed is fair as well.
        signs = self._matrix()[rng.sample(range(1, self.players), self.players - 1)[row]].tolist()
        return [player for player, sign in zip(order, signs, strict=True) if sign > 0]

    def _matrix(self) -> Tensor:
        matrix = hadamard(self.players)
        assert matrix is not None, "checked when these splits were made"
        return matrix

    def coalitions(self, indices: Sequence[int]) -> Tensor:
        """[2M, n] bool: every first part, directly followed by its rest."""
        first = self.first_parts(indices)
        return torch.stack([first, ~first], dim=1).flatten(0, 1)


def default_sizes(players: int) -> tuple[int, ...]:
    """n/8, n/4, 3n/8 and n/2, as far as they are whole and different: the paper's sizes for 256 players."""
    return tuple(sorted({max(1, players * eighths // 8) for eighths in (1, 2, 3, 4)}))


def strata_of(sizes: Iterable[int], players: int, halves: Halves = "both") -> tuple[int, ...]:
    """The coalition sizes that splits at `sizes` tell something of, ascending: each j, and n - j of its rest.

    halves: "first" leaves out the rests.
    """
    if halves == "first":
        return tuple(sorted(sizes))
    both = {part for size in sizes for part in (size, players - size)}
    return tuple(sorted(both - {0}))
