"""Slopes of two engines' times over the depth, ratios with a named reference, and the page of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from statistics import linear_regression, median
from typing import Any

from llama_bench import CACHES
from measured import Engine, Measured
from own_steps import BITS_4, BITS_8, FULL, KEPT_5
from reporting import markdown_table

EQUAL_BITS = {FULL: "f16", BITS_8: "q8_0", BITS_4: "q4_0"}
"""Caches of both engines that hold all tokens at the same bits."""
SLOPE_AT_F16, SLOPE_AT_EQUAL_BITS = 4.0, 8.0
"""Targets: how many times less a token of context is to cost."""


@dataclass(frozen=True)
class Line:
    """A cache at a number of threads: times of a token by depth."""

    engine: Engine
    cache: str
    weights: str
    threads: int
    ms: Mapping[int, float]
    """Medians by depth, ascending."""
    cache_bytes: int
    """At the largest depth."""
    weight_bytes: int

    @property
    def slope(self) -> float:
        """Milliseconds per 1,000 tokens of context, by least squares."""
        return 1000 * linear_regression(list(self.ms), list(self.ms.values())).slope

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
    ms = {depth: median(chain.from_iterable(each.ms for each in found if each.depth == depth)) for depth in depths}
    deepest = next(each for each in found if each.depth == depths[-1])
    return Line(engine, cache, weights, threads, ms, deepest.cache_bytes, deepest.weight_bytes)


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
        """llama.cpp's fastest cache at the largest depth."""
        return min(self.theirs, key=lambda line: line.last, default=None)

    def _flattest(self, kind: str) -> Line | None:
        names = {cache.name for cache in CACHES if cache.type == kind}
        return min((line for line in self.theirs if line.cache in names), key=lambda line: line.slope, default=None)


def flatter(line: Line, reference: Line | None) -> float | None:
    """Ratio of the reference's slope to this one's; infinity where that is flat.

    None without a reference, or with one that is flat itself.
    """
    if reference is None or reference.slope <= 0:
        return None
    return reference.slope / line.slope if line.slope > 0 else inf


def faster(line: Line, reference: Line | None) -> float | None:
    """Ratio of the reference's time of a token to this one's, at the largest depth of both."""
    return reference.last / line.last if reference and max(reference.ms) == max(line.ms) else None


def by_threads(measured: Sequence[Measured]) -> dict[int, Comparison]:
    """Comparisons by the number of threads."""
    found = lines(measured)
    counts = sorted({line.threads for line in found})
    return {count: Comparison([line for line in found if line.threads == count]) for count in counts}


def tokens_table(compared: Comparison) -> str:
    """All caches of a number of threads."""
    depths = sorted({depth for line in compared.lines for depth in line.ms})
    body = [
        [
            line.engine,
            f"`{line.cache}`",
            line.weights,
            f"{line.cache_bytes / 1e6:.1f}" if line.cache_bytes else "",
            *(f"{line.ms[depth]:.1f}" if depth in line.ms else "" for depth in depths),
            f"{line.slope:.2f}",
            _times(flatter(line, compared.f16)),
            _times(flatter(line, compared.equal_bits(line))),
            _times(faster(line, compared.f16)),
        ]
        for line in [*compared.theirs, *compared.others, *compared.ours]
    ]
    head = ["engine", "cache", "weights", "cache MB", *(f"{depth:,}" for depth in depths), "slope"]
    return markdown_table([*head, "flatter than f16", "at equal bits", "faster than f16"], body)


def prompts_table(measured: Sequence[Measured]) -> str:
    """Seconds of prompts, and how many times as fast others are as llama.cpp."""
    seconds: dict[tuple[str, str, str], dict[int, float]] = {}
    for each in measured:
        if each.what == "prompt":
            seconds.setdefault((each.engine, each.cache, each.weights), {})[each.depth] = median(each.ms) / 1000
    depths = sorted({depth for found in seconds.values() for depth in found})
    theirs: Mapping[int, float] = next((found for named, found in seconds.items() if named[0] == "llama.cpp"), {})

    def cell(engine: str, found: Mapping[int, float], depth: int) -> str:
        if depth not in found:
            return ""
        ratio = f" ({theirs[depth] / found[depth]:.2f}x)" if engine != "llama.cpp" and depth in theirs else ""
        return f"{found[depth]:.1f}{ratio}"

    body = [
        [named[0], f"`{named[1]}`", named[2], *(cell(named[0], found, depth) for depth in depths)]
        for named, found in seconds.items()
    ]
    return markdown_table(["engine", "cache", "weights", *(f"{depth:,} tokens" for depth in depths)], body)


def targets_table(compared: Mapping[int, Comparison]) -> str:
    """Targets, and what was found."""
    body = [row for threads, each in compared.items() for line in each.ours for row in _targets(threads, each, line)]
    return markdown_table(["threads", "cache", "weights", "target", "found", "met"], body)


def _targets(threads: int, compared: Comparison, line: Line) -> list[list[str]]:
    """The targets of one of our caches."""
    aims: list[tuple[str, float | None, float]] = []
    if line.cache == FULL:
        aims.append((f"{SLOPE_AT_F16:g}x flatter than f16", flatter(line, compared.f16), SLOPE_AT_F16))
    if equal := compared.equal_bits(line):
        title = f"{SLOPE_AT_EQUAL_BITS:g}x flatter than {equal.cache}"
        aims.append((title, flatter(line, equal), SLOPE_AT_EQUAL_BITS))
    if line.cache == KEPT_5 and (fastest := compared.fastest):
        title = f"a token at {max(line.ms):,} faster than with {fastest.cache}"
        aims.append((title, faster(line, fastest), 1.0))
    return [
        [str(threads), f"`{line.cache}`", line.weights, title, _times(found), "yes" if found >= least else "no"]
        for title, found, least in aims
        if found is not None
    ]


def _times(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return "flat" if ratio == inf else f"{ratio:.2f}x"


def page(measured: Sequence[Measured], about: str, machine: str) -> str:
    """The whole page. about: the model and the versions, in sentences; machine: one line on it."""
    compared = by_threads(measured)
    parts = [
        "# Against llama.cpp",
        f"{about} {machine}",
        "Regenerate with `python benchmarks/peers/llama_cpp.py MODEL.gguf` on a machine that does nothing else "
        "(resumable); how it measures is told in [benchmarks](../../benchmarks/README.md#against-llamacpp).",
        "## Found\n\n" + targets_table(compared),
        "## Milliseconds of a token by tokens of context\n\nThe *slope* is in milliseconds per 1,000 tokens of "
        "context, by least squares over the depths. *Flatter than f16* is llama.cpp's slope at f16, with its flash "
        "attention or without, whichever is lower, over that of the row; *at equal bits* the same with its cache of as "
        "many bits. *Faster than f16* compares whole tokens, weights and all, at the largest depth.",
        *(f"### Threads: {threads}\n\n{tokens_table(each)}" for threads, each in compared.items()),
        _weights_told(measured),
        "## Seconds of a prompt\n\nWith the largest number of threads; in brackets how many times as fast as "
        "llama.cpp.\n\n" + prompts_table(measured),
    ]
    return "\n\n".join(parts) + "\n"


def _weights_told(measured: Sequence[Measured]) -> str:
    """Bytes that both engines read for a token besides the cache, in words."""
    sizes = {(each.engine, each.weights): each.weight_bytes for each in measured}
    told = ", ".join(f"{engine} {size / 1e6:,.0f} MB ({weights})" for (engine, weights), size in sizes.items())
    return (
        f"Weights are most of a token on a small model: {told}. Winnow's own are unpacked, so that what it loses to "
        "llama.cpp at depth 0 it loses there, and not in its cache."
    )


def records(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Prompts as they were measured, and lines with their slopes and ratios, for programs."""
    found: list[dict[str, Any]] = [
        {"what": "prompt", "engine": each.engine, "cache": each.cache, "weights": each.weights}
        | {"threads": each.threads, "depth": each.depth, "ms": each.ms}
        for each in measured
        if each.what == "prompt"
    ]
    for compared in by_threads(measured).values():
        found += [_record(line, compared, measured) for line in compared.lines]
    return found


def _record(line: Line, compared: Comparison, measured: Sequence[Measured]) -> dict[str, Any]:
    named = (line.engine, line.cache, line.weights, line.threads)
    raw: dict[str, list[float]] = {}
    for each in measured:
        if each.what == "token" and named == (each.engine, each.cache, each.weights, each.threads):
            raw.setdefault(str(each.depth), []).extend(each.ms)
    return {
        "what": "token",
        "engine": line.engine,
        "cache": line.cache,
        "weights": line.weights,
        "threads": line.threads,
        "cache_bytes": line.cache_bytes,
        "weight_bytes": line.weight_bytes,
        "ms": raw,
        "ms_per_1000_tokens": line.slope,
        "flatter_than_f16": _finite(flatter(line, compared.f16)),
        "flatter_at_equal_bits": _finite(flatter(line, compared.equal_bits(line))),
        "faster_than_f16": faster(line, compared.f16),
    }


def _finite(ratio: float | None) -> float | None:
    """The ratio; None for infinity, which is no JSON."""
    return None if ratio == inf else ratio
