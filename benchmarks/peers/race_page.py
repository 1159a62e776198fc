"""The page of a race, and its records for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from statistics import median
from typing import Any

from comparison import BENT, EQUAL_BITS, Comparison, Line, by_threads, faster, flatter
from measured import Measured
from own_steps import FULL, KEPT_5
from reporting import markdown_table

SLOPE_AT_F16, SLOPE_AT_EQUAL_BITS = 4.0, 8.0
"""Targets: how many times less a token of context is to cost."""
MET = {True: "yes", False: "no", None: "not judged"}
"""A target met or not, in words."""


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
            f"{line.slope:.2f} ± {line.error:.2f}" + ("" if line.straight else ", bent"),
            _flatter(line, compared.f16),
            _flatter(line, compared.equal_bits(line)),
            _times(faster(line, compared.f16)),
        ]
        for line in [*compared.theirs, *compared.others, *compared.ours]
    ]
    head = ["engine", "cache", "weights", "cache MB", *(f"{depth:,}" for depth in depths), "slope"]
    return markdown_table([*head, "flatter than f16", "at equal bits", "faster than f16"], body)


def prompts_table(measured: Sequence[Measured]) -> str:
    """Seconds of prompts, and how many times as fast others are as llama.cpp's fastest with as many threads."""
    seconds: dict[tuple[int, str, str, str], dict[int, float]] = {}
    for each in measured:
        if each.what == "prompt":
            named = (each.threads, each.engine, each.cache, each.weights)
            seconds.setdefault(named, {})[each.depth] = median(each.ms) / 1000
    depths = sorted({depth for found in seconds.values() for depth in found})
    fastest: dict[tuple[int, int], float] = {}
    for (threads, engine, *_), found in seconds.items():
        for depth, taken in found.items() if engine == "llama.cpp" else ():
            fastest[threads, depth] = min(taken, fastest.get((threads, depth), inf))

    def cell(threads: int, engine: str, found: Mapping[int, float], depth: int) -> str:
        if depth not in found:
            return ""
        reference = None if engine == "llama.cpp" else fastest.get((threads, depth))
        return f"{found[depth]:.1f}" + (f" ({reference / found[depth]:.2f}x)" if reference else "")

    body = [
        [str(threads), engine, f"`{cache}`", weights, *(cell(threads, engine, found, depth) for depth in depths)]
        for (threads, engine, cache, weights), found in sorted(
            seconds.items(), key=lambda row: (row[0][0], row[0][1] != "llama.cpp")
        )
    ]
    return markdown_table(["threads", "engine", "cache", "weights", *(f"{depth:,} tokens" for depth in depths)], body)


def targets_table(compared: Mapping[int, Comparison]) -> str:
    """Targets, and what was found."""
    body = [row for threads, each in compared.items() for line in each.ours for row in _targets(threads, each, line)]
    return markdown_table(["threads", "cache", "weights", "target", "found", "met"], body)


def _targets(threads: int, compared: Comparison, line: Line) -> list[list[str]]:
    """The targets of one of our caches."""
    flat: list[tuple[Line | None, float]] = []
    if line.cache == FULL:
        flat.append((compared.f16, SLOPE_AT_F16))
    if line.cache in EQUAL_BITS:
        flat.append((compared.equal_bits(line), SLOPE_AT_EQUAL_BITS))
    found: list[tuple[str, str, bool | None]] = []
    for reference, least in flat:
        if reference:
            ratio = flatter(line, reference)
            met = None if ratio is None else ratio >= least
            found.append((f"{least:g}x flatter than {reference.cache}", _flatter(line, reference), met))
    fastest = compared.fastest
    if line.cache == KEPT_5 and fastest and (ratio := faster(line, fastest)) is not None:
        found.append((f"a token at {max(line.ms):,} faster than with {fastest.cache}", _times(ratio), ratio >= 1))
    return [[str(threads), f"`{line.cache}`", line.weights, target, told, MET[met]] for target, told, met in found]


def _flatter(line: Line, reference: Line | None) -> str:
    ratio = flatter(line, reference)
    return _times(ratio) if ratio is None or line.certain else f"over {_times(ratio)}"


def _times(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}x"


def page(measured: Sequence[Measured], about: str, machine: str) -> str:
    """The whole page. about: the model and the versions, in sentences; machine: one line on it."""
    compared = by_threads(measured)
    parts = [
        "# Against llama.cpp",
        f"{about} {machine}",
        f"Regenerate with {commands(measured)} on a machine that does nothing else "
        "(resumable); how it measures is told in [benchmarks](../../benchmarks/README.md#against-llamacpp).",
        "## Found\n\n" + targets_table(compared),
        "*Not judged*: times that lie on no line, or fall, have no slope to compare.",
        "## Milliseconds of a token by tokens of context\n\nThe *slope* is in milliseconds per 1,000 tokens of "
        "context, by least squares over the depths' medians, with its standard error: by the misfit of the medians, "
        "or by the scatter of repetitions, whichever is larger. *Bent* are times of which a depth is off the line by "
        f"two standard errors and by {100 * BENT:.0f} %; two depths are always on one.",
        "*Flatter than f16* is llama.cpp's slope "
        "at f16, with its flash attention or without, whichever is lower, over that of the row; *at equal bits* the "
        "same with its cache of as many bits; *over* stands before a ratio whose slope is lost in the noise, with "
        "twice the error in its place. Slopes that are bent, or fall by more than twice their error, have no ratio. "
        "*Faster than f16* compares whole tokens, weights and all, at the largest depth. "
        "What was not measured is left empty.",
        *(f"### Threads: {threads}\n\n{tokens_table(each)}" for threads, each in compared.items()),
        _weights_told(measured),
        "## Seconds of a prompt\n\nIn brackets how many times as fast as llama.cpp's fastest cache with as "
        "many threads. Every prompt was read once.\n\n" + prompts_table(measured),
    ]
    return "\n\n".join(parts) + "\n"


def commands(measured: Sequence[Measured]) -> str:
    """Commands that measure it again, one for every number of threads unless all had the same depths and weights."""
    settings: dict[tuple[tuple[int, ...], tuple[str, ...]], list[int]] = {}
    for threads in sorted({each.threads for each in measured if each.what == "token"}):
        tokens = [each for each in measured if each.what == "token" and each.threads == threads]
        depths = tuple(sorted({each.depth for each in tokens}))
        weights = tuple(dict.fromkeys(each.weights for each in tokens if each.engine == "winnow"))
        settings.setdefault((depths, weights), []).append(threads)
    return " and ".join(
        f"`python benchmarks/peers/llama_cpp.py MODEL.gguf --threads {_listed(threads)} --depths {_listed(depths)} "
        f"--weights {_listed(weights)}`"
        for (depths, weights), threads in settings.items()
    )


def _listed(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def _weights_told(measured: Sequence[Measured]) -> str:
    """Bytes that both engines read for a token besides the cache, in words."""
    sizes = {(each.engine, each.weights): each.weight_bytes for each in measured}
    told = ", ".join(f"{engine} {size / 1e6:,.0f} MB ({weights})" for (engine, weights), size in sizes.items())
    return (
        f"Weights are most of a token on a small model: {told}. Where Winnow is slower at depth 0, that is for larger "
        "weights and for Python, and not for its cache; the slope is free of both."
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
        found += [_record(line, compared) for line in compared.lines]
    return found


def _record(line: Line, compared: Comparison) -> dict[str, Any]:
    return {
        "what": "token",
        "engine": line.engine,
        "cache": line.cache,
        "weights": line.weights,
        "threads": line.threads,
        "cache_bytes": line.cache_bytes,
        "weight_bytes": line.weight_bytes,
        "ms": {str(depth): list(found) for depth, found in line.repetitions.items()},
        "ms_per_1000_tokens": line.slope,
        "standard_error": line.error,
        "straight": line.straight,
        "flatter_than_f16": _finite(flatter(line, compared.f16)),
        "flatter_at_equal_bits": _finite(flatter(line, compared.equal_bits(line))),
        "faster_than_f16": faster(line, compared.f16),
    }


def _finite(ratio: float | None) -> float | None:
    """The ratio; None for infinity, which is no JSON."""
    return None if ratio == inf else ratio


def measured_again(found: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """Measurements that `records` of them were made of, a cache's repetitions at a depth together."""
    return [each for record in found for each in _of_record(record)]


def _of_record(record: Mapping[str, Any]) -> list[Measured]:
    """The measurements of a record. Bytes of caches are those at the largest depth, which alone are told."""
    named = (record["what"], record["engine"], record["cache"], record["weights"], record["threads"])
    if record["what"] == "prompt":
        return [Measured(*named, record["depth"], "", record["ms"], 0, 0)]
    sizes = (record["cache_bytes"], record["weight_bytes"])
    return [Measured(*named, int(depth), "", ms, *sizes) for depth, ms in record["ms"].items()]
