"""Latency of ApertureKV's halves: prefill with compression, and decoding. ApertureKV's Fig. 10."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median

import winnow
from claims import HEADS, HEADS_BUDGET, Setting
from end_to_end import Contender, decode, prefill
from evaluated import Study
from examined import Examined
from reporting import machine, markdown_table
from winnow.files import read_text, write_text
from winnow.strict_json import parse_object
from winnow.typed import read_as

SETTINGS = (Setting("SnapKV", "snapkv"), *HEADS)
GENERATED = (8, 16, 32, 64)
"""Tokens of an answer."""
REPEATS, STEPS = 7, 24
BASE = "AdaKV"


@dataclass(frozen=True)
class Cost:
    """Medians of one method."""

    label: str
    compress: float
    """Seconds."""
    step: float
    """Seconds for a token."""


@dataclass(frozen=True)
class Latency:
    """Costs of all methods on one prompt, whose prefill they share."""

    machine: str
    tokens: int
    prefill: float
    """Seconds, without compression."""
    costs: list[Cost]
    model: str = ""
    """Whose costs they are; empty in records of earlier versions, which did not tell."""
    scores: str = ""
    """Hash of the table of head scores that HeadKV followed; empty where there was none."""


def settings(scores: Path | None) -> tuple[Setting, ...]:
    """Methods that are timed; HeadKV among them where there is a table of head scores for it."""
    if scores is None:
        return SETTINGS
    quoted = str(scores.resolve()).replace("'", "''")
    return (SETTINGS[0], Setting("HeadKV", f"snapkv+headkv(scores='{quoted}')"), *SETTINGS[1:])


def measured(study: Study, tokens: int, scores: Path | None = None) -> Latency:
    """Compressions of one waiting prompt, and then decoding steps, take turns; what was measured is kept in a file.

    What was measured of another model, on another machine or by other software is measured anew, and so is what was
    measured without HeadKV, or with another table than `scores`, where a table is given.
    """
    table = "" if scores is None else sha256(scores.read_bytes()).hexdigest()
    path = study.folder / f"latency-{tokens}.json"
    if path.exists():
        known = read_as(Latency, parse_object(read_text(path)))
        if (known.model, known.machine) == (study.identity, machine()) and table in ("", known.scores):
            return known
    examined = Examined(study, "prompts", {}, tokens, 1)
    prompt, model = examined.prompt("question", 0), examined.model
    prefill(model, prompt[:, :256])
    waiting, seconds = prefill(model, prompt)
    methods = {setting.label: winnow.method(setting.method, HEADS_BUDGET) for setting in settings(scores)}
    compressing: dict[str, list[float]] = {label: [] for label in methods}
    for _ in range(REPEATS):
        for label, method in methods.items():
            compressing[label].append(waiting.compressed_by(method).stats().compress_seconds)
    made = [Contender(label, "winnow", waiting.compressed_by(method), int) for label, method in methods.items()]
    steps = decode(model, made, STEPS)
    costs = [Cost(label, median(compressing[label]), steps[label] / 1000) for label in methods]
    found = Latency(machine(), prompt.shape[1], seconds, costs, study.identity, table)
    write_text(path, json.dumps(asdict(found), indent=1) + "\n")
    return found


def section(found: Latency) -> str:
    """The table of a model."""
    base = next(cost for cost in found.costs if cost.label == BASE)
    body = [
        [
            cost.label,
            f"{1000 * cost.compress:.1f}",
            f"{1000 * (cost.compress - base.compress):+.1f}",
            f"{100 * cost.compress / found.prefill:.2f} %",
            f"{1000 * cost.step:.1f}",
            *(f"{found.prefill + cost.compress + tokens * cost.step:.2f}" for tokens in GENERATED),
        ]
        for cost in found.costs
    ]
    head = ["method", "compression ms", f"against {BASE} ms", "of prefill", "token ms"]
    table = markdown_table([*head, *(f"prompt + {tokens} tokens s" for tokens in GENERATED)], body)
    return (
        f"{found.tokens:,} tokens, prefill {found.prefill:.2f} s, {HEADS_BUDGET} slots; medians of {REPEATS} "
        f"compressions and {STEPS} tokens that took turns.\n\n{table}\n\n{found.machine}"
    )
