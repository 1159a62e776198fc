"""From utilities of complementary coalitions to sliced Shapley values with their errors.

A split of the n players into S, of j players, and the rest gives one number, u = U(S) - U(rest), which is a sample of

    SV[i, j]      for every player i of S     (the complementary contribution of S, Eq. 3 of the CoKV paper), and
    SV[i, n - j]  for every player i of the rest, with the sign turned: U(rest) - U(S) is the rest's own.

SSV[i] is the mean of SV[i, ·] over coalition sizes (Eq. 4). Splits at sizes H feed the sizes j and n - j for j in H,
and all of these enter the mean with the same weight: this is how both parts of every split are used. For H = {n/2} that
is Eq. 4 to the letter; for other H it is Eq. 4 with H united with n - H (the paper samples only sizes up to n/2 because
it finds those of j and n - j nearly the same, App. E.4; its code then drops the second part). H = {1, ..., n} gives the
Shapley value itself. "first" takes the samples of S alone, and Eq. 4's sizes H: Algorithm 1 to the letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.estimate.cokv.sampling import HALVES
from winnow.estimate.errors import ShapleyError
from winnow.heads.cokv_file import Halves
from winnow.heads.compare import common_top


class Stratum(NamedTuple):
    """Samples of every player in coalitions of one size, summed up."""

    counts: Tensor
    """[n] float64: samples."""
    means: Tensor
    """[n] float64: estimates of SV[i, j]; NaN without a sample."""
    variances: Tensor
    """[n] float64: of a single sample, unbiased; NaN with fewer than two."""

    @property
    def squared_errors(self) -> Tensor:
        """[n]: squared standard errors of the means."""
        return self.variances / self.counts


@dataclass(frozen=True)
class Estimate:
    """Sliced Shapley values of n players."""

    values: Tensor
    """[n] float64, the mean of the two halves' estimates."""
    errors: Tensor
    """[n] float64, standard errors; infinite where a stratum has a single sample in one half."""
    halves: tuple[Tensor, Tensor]
    """[n] each: the estimates from the two independent halves of the samples."""
    samples: int
    """Splits, of both halves and all sizes together."""

    @property
    def overlap(self) -> float:
        """Share of the top 50% of players that the two halves have in common (Table 6)."""
        return common_top(*self.halves, max(1, len(self.values) // 2))

    @property
    def spread(self) -> float:
        """Standard error of a value, on average over the players, as the difference of the two halves shows it.

        Unlike `errors`, which take every sample as independent, this is right for balanced splits, too.
        """
        one, other = self.halves
        return float((one - other).square().mean().sqrt()) / HALVES

    def margin(self, confidence: float = 0.95) -> Tensor:
        """[n]: values ± margin hold the true values with this confidence each, by the normal approximation."""
        if not 0 < confidence < 1:
            raise ShapleyError(f"confidence must be between 0 and 1, not {confidence}.")
        return self.errors * NormalDist().inv_cdf((1 + confidence) / 2)


def contributions(first: Tensor, utilities: Tensor) -> Tensor:
    """[M] float64, u = U(S) - U(rest), from utilities [M, 2] of first parts [M, n] and their rests."""
    if utilities.shape != (len(first), 2):
        raise ShapleyError(f"{len(first)} splits need utilities [{len(first)}, 2], not {list(utilities.shape)}.")
    return utilities[:, 0].double() - utilities[:, 1].double()


def strata(first: Tensor, u: Tensor, halves: Halves = "both") -> dict[int, Stratum]:
    """Coalition size -> its samples, from first parts [M, n] and contributions u [M].

    halves: "first" leaves out what a split tells of the rest.

    Sums run over the samples in order, so that equal samples give equal bits on any machine.
    """
    players = first.shape[1]
    parts: dict[int, list[tuple[Tensor, float]]] = {}
    for mask, value in zip(first, u.tolist(), strict=True):
        size = int(mask.sum())
        parts.setdefault(size, []).append((mask, value))
        if halves == "both" and size < players:
            parts.setdefault(players - size, []).append((~mask, -value))
    return {size: _stratum(samples) for size, samples in sorted(parts.items())}


def _stratum(samples: Sequence[tuple[Tensor, float]]) -> Stratum:
    members = torch.stack([mask for mask, _ in samples]).double()
    values = torch.tensor([value for _, value in samples], dtype=torch.float64, device="cpu")[:, None]
    counts = members.sum(dim=0)
    means = _in_order(members * values) / counts
    squares = _in_order(members * (values - means.nan_to_num()).square())
    return Stratum(counts, means, squares / (counts - 1).clamp(min=0))


def _in_order(terms: Tensor) -> Tensor:
    """[M, n] -> [n]: the sum over samples, added up one after another, which `sum` does not promise."""
    return terms.cumsum(dim=0)[-1]


def sliced(found: Mapping[int, Stratum]) -> Tensor:
    """[n]: SSV, the plain mean over the coalition sizes.

    Raises ShapleyError for a player that no sampled coalition of some size had: it has no value, rather than zero.
    """
    for size, stratum in found.items():
        never = (stratum.counts == 0).nonzero().flatten().tolist()
        if never:
            raise ShapleyError(
                f"player {never[0]} was in no sampled coalition of {size} players, so it has no value there "
                f"({len(never)} such players): take more samples, or sizes closer to one half of the players."
            )
    return torch.stack([stratum.means for stratum in found.values()]).mean(dim=0)


def estimate_values(first: Tensor, utilities: Tensor, halves: Halves = "both") -> Estimate:
    """Sliced Shapley values from first parts [M, n] and utilities [M, 2] of splits 0, 1, 2, ... of `PlayerSplits`.

    Raises ShapleyError without samples, for a player without one, and for utilities that are all the same.
    """
    u = contributions(first, utilities)
    if len(u) < HALVES:
        raise ShapleyError(f"{len(u)} samples cannot be halved: take more.")
    if bool((utilities == utilities.flatten()[0]).all()):
        raise ShapleyError(
            f"the metric is {float(utilities[0, 0]):g} for all {utilities.numel()} coalitions, so heads cannot be told "
            "apart: use questions that the model answers with its full cache but not with the window alone."
        )
    parts = [strata(first[half::HALVES], u[half::HALVES], halves) for half in range(HALVES)]
    one, other = (sliced(part) for part in parts)
    squared = torch.stack([_squared_error(part) for part in parts]).sum(dim=0) / HALVES**2
    return Estimate((one + other) / HALVES, squared.sqrt(), (one, other), len(u))


def _squared_error(found: Mapping[int, Stratum]) -> Tensor:
    """[n]: of the mean over strata, which are independent: a split has a player in one of its parts only."""
    errors = torch.stack([stratum.squared_errors for stratum in found.values()])
    return errors.nan_to_num(nan=torch.inf).sum(dim=0) / len(found) ** 2
