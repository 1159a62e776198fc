"""Slopes of engines' times over the depth, and ratios with a named reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, sqrt
from statistics import fmean, linear_regression, median

from llama_bench import CACHES
from measured import Engine, Measured
from own_steps import BITS_4, BITS_8, FULL

EQUAL_BITS = {FULL: "f16", BITS_8: "q8_0", BITS_4: "q4_0"}
"""Caches of both engines that hold all tokens at the same bits."""


NORMAL = 1.4826
"""Standard deviation of a normal distribution, in its median distances from the middle."""


@dataclass(frozen=True)
class Line:
    """A cache at a number of threads: times of a token by depth."""

    engine: Engine
    cache: str
    weights: str
    threads: int
    repetitions: Mapping[int, Sequence[float]]
    """Milliseconds of every repetition by depth, ascending."""
    cache_bytes: int
    """At the largest depth."""
    weight_bytes: int

    @cached_property
    def ms(self) -> Mapping[int, float]:
        """Medians by depth."""
        return {depth: median(found) for depth, found in self.repetitions.items()}

    @property
    def slope(self) -> float:
        """Milliseconds per 1,000 tokens of context, by least squares over the medians."""
        return 1000 * linear_regression(list(self.ms), list(self.ms.values())).slope

    @property
    def error(self) -> float:
        """Standard error of the slope, by the median distance of repetitions from their depth's median.

        As of a normal distribution, so that one that the machine disturbed counts as one; 0 where nothing was repeated.
        """
        distances = [abs(ms - self.ms[depth]) for depth, found in self.repetitions.items() for ms in found]
        depths = [depth for depth, found in self.repetitions.items() for _ in found]
        spread = sum((depth - fmean(depths)) ** 2 for depth in depths)
        return 1000 * NORMAL * median(distances) / sqrt(spread)

    @property
    def certain(self) -> bool:
        """True if the slope is told from none: it is more than two standard errors."""
        return self.slope > 2 * self.error

    @property
    def last(self) -> float:
        """Milliseconds at the largest depth."""
        return self.ms[max(self.ms)]


def lines(measured: Sequence[Measured]) -> list[Line]:
    """All caches of which tokens were measured at two depths at least, in the order in which they were."""
    groups: dict[tuple[Engine, str, str, int], list[Measured]] = {}
    for each in measured:
        if each.what == "token":
            groups.setdefault((each.engine, each.cache, each.weights, each.threads), []).append(each)
    return [_line(*named, found) for named, found in groups.items() if len({each.depth for each in found}) > 1]


def _line(engine: Engine, cache: str, weights: str, threads: int, found: Sequence[Measured]) -> Line:
    depths = sorted({each.depth for each in found})
    taken = {depth: [ms for each in found if each.depth == depth for ms in each.ms] for depth in depths}
    deepest = next(each for each in found if each.depth == depths[-1])
    return Line(engine, cache, weights, threads, taken, deepest.cache_bytes, deepest.weight_bytes)


class Comparison:
    """The lines of one number of threads; all are compared with llama.cpp's."""

    def __init__(self, found: Sequence[Line]) -> None:
        self.lines = found
        self.theirs = [line for line in found if line.engine == "llama.cpp"]
        self.others = [line for line in found if line.engine == "OpenVINO"]
        self.ours = [line for line in found if line.engine == "winnow"]

    @property
    def f16(self) -> Line | None:
        """llama.cpp's cache of 16 bits, with the attention whose slope is lower."""
        return self._flattest("f16")

    def equal_bits(self, line: Line) -> Line | None:
        """llama.cpp's cache that holds as much at the same bits; None for one that holds less."""
        kind = EQUAL_BITS.get(line.cache)
        return self._flattest(kind) if kind else None

    @property
    def fastest(self) -> Line | None:
        """llama.cpp's fastest cache at the largest depth that one of its caches was measured at."""
        deepest = max((max(line.ms) for line in self.theirs), default=0)
        return min((line for line in self.theirs if deepest in line.ms), key=lambda line: line.last, default=None)

    def _flattest(self, kind: str) -> Line | None:
        names = {cache.name for cache in CACHES if cache.type == kind}
        return min((line for line in self.theirs if line.cache in names), key=lambda line: line.slope, default=None)


def flatter(line: Line, reference: Line | None) -> float | None:
    """Ratio of the reference's slope to this one's, or to two standard errors of this one's, whichever is more.

    So a slope that is lost in the noise gives what the ratio is at least. None without a reference, or with one whose
    slope is lost itself.
    """
    if reference is None or not reference.certain:
        return None
    least = max(line.slope, 2 * line.error)
    return reference.slope / least if least > 0 else inf


def faster(line: Line, reference: Line | None) -> float | None:
    """Ratio of the reference's time of a token to this one's, at the largest depth of both."""
    return reference.last / line.last if reference and max(reference.ms) == max(line.ms) else None


def by_threads(measured: Sequence[Measured]) -> dict[int, Comparison]:
    """Comparisons by the number of threads."""
    found = lines(measured)
    counts = sorted({line.threads for line in found})
    return {count: Comparison([line for line in found if line.threads == count]) for count in counts}
