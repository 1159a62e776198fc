"""Slopes of engines' times over the depth, and ratios with a named reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, pi, sqrt
from statistics import LinearRegression, fmean, linear_regression, median

from llama_rival import CACHES
from measured import Engine, Measured
from own_steps import BITS_4, BITS_8, FULL

EQUAL_BITS = {FULL: "f16", BITS_8: "q8_0", BITS_4: "q4_0"}
"""Caches of both engines that hold all tokens at the same bits."""


MEDIAN = pi / 2
"""Variance of a median over that of a mean of as many: what it is at most, with normal noise."""
BENT = 0.05
"""Share of its time by which a depth is off a line that does not hold, at least."""


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
        return 1000 * self._fitted.slope

    @property
    def error(self) -> float:
        """Standard error of the slope: by the medians' misfit or by the scatter within depths, whichever is larger.

        Two depths have no misfit, and what was not repeated no scatter.
        """
        mean = fmean(self.ms)
        spread = sum((depth - mean) ** 2 for depth in self.ms)
        scatter = sqrt(sum(((depth - mean) * self.uncertain(depth)) ** 2 for depth in self.ms)) / spread
        misfit = sqrt(sum(off**2 for off in self.off.values()) / max(len(self.ms) - 2, 1) / spread)
        return 1000 * max(scatter, misfit if len(self.ms) > 2 else 0)

    @property
    def off(self) -> Mapping[int, float]:
        """Milliseconds by which the medians are off the line, by depth."""
        slope, start = self._fitted
        return {depth: ms - (start + slope * depth) for depth, ms in self.ms.items()}

    @cached_property
    def deviation(self) -> float:
        """Standard deviation of a repetition within its depth, all depths together; 0 where nothing was repeated."""
        squares = sum((ms - fmean(found)) ** 2 for found in self.repetitions.values() for ms in found)
        free = sum(len(found) - 1 for found in self.repetitions.values())
        return sqrt(squares / free) if free else 0.0

    def uncertain(self, depth: int) -> float:
        """Standard error of a depth's median, by the scatter of repetitions."""
        count = len(self.repetitions[depth])
        return self.deviation * sqrt((MEDIAN if count > 2 else 1) / count)

    @property
    def straight(self) -> bool:
        """True if a line holds: no depth is off it by two standard errors and by a share of BENT."""
        return all(abs(off) <= max(2 * self.uncertain(depth), BENT * self.ms[depth]) for depth, off in self.off.items())

    @property
    def certain(self) -> bool:
        """True if the slope is told from none: it is more than two standard errors."""
        return self.slope > 2 * self.error

    @property
    def comparable(self) -> bool:
        """True if its slope says what context costs: the line holds, and does not fall by more than its error."""
        return self.straight and self.slope >= -2 * self.error

    @cached_property
    def _fitted(self) -> LinearRegression:
        return linear_regression(list(self.ms), list(self.ms.values()))

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

    So a slope that is lost in the noise gives what the ratio is at least. None without a reference, with one whose
    slope is lost itself, and where one of the two is not comparable.
    """
    if reference is None or not reference.certain or not (reference.comparable and line.comparable):
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
