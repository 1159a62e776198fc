"""Agreement of two halves of an estimation, against what chance alone would give.

The halves are estimated from different runs. Where the scores have nothing to do with the heads, each order of the
heads is as likely as any other, and Spearman's correlation of the halves has mean 0 and variance 1 / (n - 1) over n
heads, ties or not. A correlation that noise exceeds one time in twenty is therefore 1.64 / sqrt(n - 1).
"""

from __future__ import annotations

from math import isnan, sqrt
from statistics import NormalDist
from typing import NamedTuple

from torch import Tensor

from winnow.estimate.errors import NoiseError
from winnow.heads.compare import spearman

CONFIDENCE = 0.95


class SplitHalf(NamedTuple):
    """Rank correlation of two halves."""

    correlation: float
    """NaN where all scores of a half are equal."""
    heads: int

    @classmethod
    def of(cls, one: Tensor, other: Tensor) -> SplitHalf:
        """From the scores of two halves, of any one shape."""
        return cls(spearman(one, other), one.numel())

    @property
    def chance(self) -> float:
        """The correlation that noise stays below nineteen times in twenty."""
        return NormalDist().inv_cdf(CONFIDENCE) / sqrt(max(1, self.heads - 1))

    @property
    def noise(self) -> bool:
        """True where chance alone would do as well."""
        return not self.correlation > self.chance

    def __str__(self) -> str:
        found = "no rank correlation" if isnan(self.correlation) else f"rank correlation {self.correlation:.2f}"
        return f"{found} over {self.heads} heads, by chance up to {self.chance:.2f}"


def check_signal(found: SplitHalf | None, runs: str, remedy: str) -> None:
    """Raises NoiseError for scores that are no better than chance, or that have no halves to tell.

    runs: what the scores come from ("12 right runs"). remedy: a sentence on what is kept and what would help.
    """
    if found is None:
        raise NoiseError(f"{runs}: too little to tell the scores from noise, so they are not written. {remedy}")
    if found.noise:
        raise NoiseError(
            f"{runs}: the halves of them agree no better than chance ({found}), so the scores are not written. {remedy}"
        )
