"""From estimated sliced Shapley values to a file of head scores, and what is said about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from winnow.bundled import NAME
from winnow.estimate.cokv.bound import samples_needed, sampling_bound
from winnow.estimate.cokv.estimator import Estimate
from winnow.estimate.cokv.sampling import strata_of
from winnow.estimate.split_half import SplitHalf, check_signal
from winnow.heads.cokv_file import Halves
from winnow.heads.scores import HeadScores
from winnow.metrics import DEFAULT_METRIC
from winnow.tasks.prompt_style import FACTS

RELEASE = 0.9
"""Overlap of the halves that scores should have before others use them."""

_EPSILON = 0.1
"""The error that the samples of Theorem 2 are told for."""

BENCHMARK = "benchmark"
"""Key for the benchmark that examples are of, with protocol and part, where they are of one."""

_ASKED = (
    "players",
    "sizes",
    "balanced",
    "seed",
    "examples",
    "examples_hash",
    "question_tokens",
    "window",
    "answer_tokens",
    "metric",
    "dtype",
    FACTS,
    BENCHMARK,
)
"""Keys that a file's settings have from a journal's configuration."""


class Origin(NamedTuple):
    """Facts in a file of scores besides those on how they were made."""

    model: str
    license: str
    notes: str


class EvaluatedPart(NamedTuple):
    """The part of what a journal has that scores are computed from."""

    left_out: Sequence[int] = ()
    """Examples that they are not of."""
    halves: Halves = "both"

    def facts(self) -> dict[str, Any]:
        """Settings that say so, where it is not everything."""
        found = {"left_out": list(self.left_out)} if self.left_out else {}
        return {**found, "halves": self.halves} if self.halves != "both" else found


def check_estimate(found: Estimate, keep_noise: bool, remedy: str) -> None:
    """Raises NoiseError where the halves agree by chance only, unless that is to be kept.

    remedy: a sentence on what would help.
    """
    if not keep_noise:
        check_signal(SplitHalf.of(*found.halves), f"{found.samples} samples", f"{remedy} --keep-noise writes them.")


def write_table(out: Path, found: Estimate, config: dict[str, Any], origin: Origin, part: EvaluatedPart) -> HeadScores:
    """The table [L, H], saved. config: of the journal that the estimate comes from."""
    table = HeadScores(
        found.values.view(config["layers"], config["heads"]),
        "cokv",
        model=origin.model,
        seed=config["seed"],
        samples=found.samples,
        date=date.today().isoformat(),
        license=origin.license or ("Apache-2.0" if origin.model == NAME else ""),
        notes=origin.notes or _what_was_done(found, config, part),
        settings=settings_of(config, found.samples, part),
    )
    table.save(out)
    return table


def settings_of(config: dict[str, Any], samples: int, part: EvaluatedPart) -> str:
    """Settings of an estimation, for its file. Journals of earlier versions do not know all of them."""
    asked = {name: config[name] for name in _ASKED if name in config}
    return json.dumps({**asked, "samples": samples, **part.facts()})


def report(console: Console, found: Estimate, table: HeadScores, overlap: float | None) -> None:
    """Prints the result, and advice where more samples are needed."""
    console.print(
        f"cokv: {found.samples} samples; halves share {100 * found.overlap:.0f}% of their top 50%, "
        f"{SplitHalf.of(*found.halves)}; scores "
        f"{float(table.values.min()):.3f} to {float(table.values.max()):.3f}, ± {2 * found.spread:.3f} (95%)"
    )
    if overlap is not None and found.overlap < overlap:
        console.print(f"The halves do not agree to {100 * overlap:.0f}% yet: take more --samples.", style="yellow")
    elif found.overlap < RELEASE:
        console.print(f"For scores that others will use, 90% are recommended: --overlap {RELEASE}.", style="dim")


def theorem_line(found: Estimate, config: dict[str, Any], part: EvaluatedPart, delta: float) -> str:
    """A sentence on what Theorem 2 promises of so many samples, and on how many it asks for."""
    sizes = len(strata_of(config["sizes"], config["players"], part.halves))
    epsilon = sampling_bound(found.samples, sizes, delta)
    needed = samples_needed(sizes, _EPSILON, delta)
    return (
        f"Theorem 2: a score is within {epsilon:.2f} of its sliced value with {100 * (1 - delta):g}%; samples needed "
        f"for ({_EPSILON:g}, {delta:g}): {needed:,}."
    )


def _what_was_done(found: Estimate, config: dict[str, Any], part: EvaluatedPart) -> str:
    sizes = ", ".join(map(str, strata_of(config["sizes"], config["players"], part.halves)))
    alone = "" if part.halves == "both" else " (first parts only)"
    examples = config["examples"] - len(part.left_out)
    judged = f"{_judged(config)} of {examples} validation examples"
    if BENCHMARK in config:
        judged += " of {name} (protocol {protocol}, {split})".format(**config[BENCHMARK])
    return (
        f"sliced Shapley values over coalitions of {sizes} of {config['players']} heads{alone}; {judged}; "
        f"window {config['window']}; overlap of halves {found.overlap:.2f}"
    )


def _judged(config: dict[str, Any]) -> str:
    name: str = config.get("metric", DEFAULT_METRIC)
    return "the tasks' metrics" if BENCHMARK in config else name.replace("_", " ")
