"""The fit of scores that were estimated anew to a table: measures, each with what a true table would show.

Fresh scores of a true table differ from it by their errors only. So the bounds are what normal errors of that size,
drawn again and again, hardly ever exceed: once in ten thousand times for each measure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, lgamma, log
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.heads.compare import mean_ranks, rank_correlation, top_overlap
from winnow.heads.scores import HeadScores

RARE = 0.0001
"""Share of true tables that fail one of the measures."""
_DRAWS = 10_000
_AT_ONCE = 1_000
_INTERVAL = 0.95
# Other hardware rounds differently: so much of the highest score is no deviation.
_ROUNDING = 1e-4
# Two ways to compute the same measure differ by less.
_TINY = 1e-9


class Fresh(NamedTuple):
    """Scores that were estimated anew."""

    values: Tensor
    """[L, H] float64."""
    errors: Tensor
    """[L, H]: standard errors of the difference to the table."""
    freedom: int
    """Independent numbers that the errors come from, less one."""


class Bound(NamedTuple):
    """A measure and the limit expected of it."""

    found: float
    limit: float


@dataclass(frozen=True)
class Agreement:
    """Between a table and fresh scores of the same heads."""

    correlation: Bound
    """Correlation of the ranks; at least the limit."""
    overlap: Bound
    """Overlap of the top halves; at least the limit."""
    deviation: Bound
    """The largest, in standard errors; at most the limit."""
    place: tuple[int, int]
    """Layer and head of the largest deviation."""
    inside: Bound
    """Share of the heads in their 95 % interval; at least the limit, which is 0 where heads err together."""

    @property
    def failures(self) -> list[str]:
        """Measures outside what is expected, in words."""
        layer, head = self.place
        wrong = {
            "rank correlation": self.correlation.found < self.correlation.limit - _TINY,
            "top 50% overlap": self.overlap.found < self.overlap.limit - _TINY,
            f"deviation of layer {layer}, head {head}": self.deviation.found > self.deviation.limit,
            "heads inside their intervals": self.inside.found < self.inside.limit - _TINY,
        }
        return [name for name, failed in wrong.items() if failed]


def check_agreement(table: HeadScores, fresh: Fresh, independent: bool) -> Agreement:
    """Agreement of a table with fresh scores.

    independent: whether one head's error says little of another's, so that the heads inside can be counted.
    """
    errors = (fresh.errors**2 + (_ROUNDING * table.values.abs().max()) ** 2).sqrt()
    deviations = (fresh.values - table.values).abs() / errors
    inside = float((deviations <= NormalDist().inv_cdf((1 + _INTERVAL) / 2)).double().mean())
    largest = int(deviations.argmax())
    found = replace(table, values=fresh.values, path=None)
    least_correlation, least_overlap = _simulated(table, errors)
    return Agreement(
        Bound(rank_correlation(table, found), least_correlation),
        Bound(top_overlap(table, found), least_overlap),
        Bound(float(deviations.flatten()[largest]), _largest_of(deviations.numel(), fresh.freedom)),
        (largest // table.shape[1], largest % table.shape[1]),
        Bound(inside, _fewest_inside(deviations.numel()) if independent else 0.0),
    )


def _simulated(table: HeadScores, errors: Tensor) -> tuple[float, float]:
    """Rank correlation and top-half overlap that fresh scores with such errors [L, H] hardly ever fall below."""
    generator = torch.Generator().manual_seed(0)
    values, spread = table.values.flatten(), errors.flatten()
    correlations, overlaps = [], []
    for _ in range(_DRAWS // _AT_ONCE):
        noise = torch.randn(_AT_ONCE, len(values), generator=generator, dtype=torch.float64, device="cpu")
        drawn = values + noise * spread
        correlations.append(_correlations(values, drawn))
        overlaps.append(_overlaps(values, drawn))
    return _lowest(torch.cat(correlations)), _lowest(torch.cat(overlaps))


def _correlations(values: Tensor, drawn: Tensor) -> Tensor:
    """[draws] rank correlations of values [n] with draws [draws, n], of which no two are equal."""
    ranks = torch.stack([mean_ranks(values), *drawn.argsort(dim=1).argsort(dim=1).double()])
    deviations = torch.nn.functional.normalize(ranks - ranks.mean(dim=1, keepdim=True), dim=1)
    return deviations[1:] @ deviations[0]


def _overlaps(values: Tensor, drawn: Tensor) -> Tensor:
    """[draws] shares that the top halves of values [n] and of draws [draws, n] have in common."""
    half = max(1, len(values) // 2)
    top = torch.zeros(len(values), dtype=torch.float64, device="cpu")
    top[values.argsort(descending=True, stable=True)[:half]] = 1.0
    return top[drawn.topk(half, dim=1).indices].mean(dim=1)


def _lowest(measures: Tensor) -> float:
    return float(measures.sort().values[int(RARE * len(measures))])


def _largest_of(heads: int, freedom: int) -> float:
    """The largest of so many deviations exceeds this once in ten thousand times, for Student's distribution."""
    z = NormalDist().inv_cdf(1 - RARE / (2 * heads))
    return z + (z**3 + z) / (4 * freedom)


def _fewest_inside(heads: int) -> float:
    """The share of heads that fewer are inside of once in ten thousand times, if each is with 95 %."""
    chances = accumulate(_chance(heads, inside) for inside in range(heads + 1))
    return next(fewest for fewest, chance in enumerate(chances) if chance > RARE) / heads


def _chance(heads: int, inside: int) -> float:
    """The chance that exactly so many are inside; by logarithms, as no float holds the binomials of large models."""
    outside = heads - inside
    ways = lgamma(heads + 1) - lgamma(inside + 1) - lgamma(outside + 1)
    return exp(ways + inside * log(_INTERVAL) + outside * log(1 - _INTERVAL))
