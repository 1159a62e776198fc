"""Coverage: tokens that are kept anywhere, layer by layer, and what two heads keep in common.

K-VEC's Tables 3 and S4; ApertureKV's Tables 7 and 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

import torch

import winnow
from claims import DEPTH, DEPTH_BUDGETS, DROPS, EVICTED, HEADS, HEADS_BUDGET
from evaluated import Study
from examined import KINDS, Examined, Share, Shares
from reporting import markdown_table
from winnow import Method
from winnow.cache.layer import CompressedLayer
from winnow.diagnostics.kept import head_overlap, kept_mask, retained_diversity
from winnow.diagnostics.pairs import mean_over_pairs
from winnow.estimate.records import Record

TYPES = {"depth": Shares, "rtd": Share, "iou": Share}


class Kept(NamedTuple):
    """Means over prompts."""

    depth: list[float]
    """Share of the prompt that any head of the first 1, 2 … L layers keeps."""
    rtd: float
    """Share of the prompt that a layer keeps, mean over the layers."""
    iou: float
    """Overlap of two heads of a layer; 0 where layers have one."""


def measured(study: Study, tokens: int, count: int) -> dict[str, dict[str, Kept]]:
    """Findings by the kind of prompt and the method's text."""
    examined = Examined(study, "kept", TYPES, tokens, count)
    found = {}
    for kind in KINDS:
        title = f"{study.title}, {kind}: what is kept"
        records = examined.over(kind, title, _methods(), partial(_kept, examined, kind))
        found[kind] = {text: _mean(each) for text, each in records.items()}
    return found


def section(found: dict[str, dict[str, Kept]], tokens: int) -> str:
    """The tables of a model."""
    return "\n\n".join(
        f"#### Prompts of {tokens:,} tokens: {words}\n\n{_drops(found[kind])}\n\n{_depth(found[kind])}\n\n"
        f"{_heads(found[kind])}"
        for kind, words in KINDS.items()
    )


def _methods() -> list[Method]:
    asked = [
        *((name, budget) for name in DROPS for budget in EVICTED.values()),
        *((name, budget) for name in DEPTH for budget in DEPTH_BUDGETS),
        *((setting.method, HEADS_BUDGET) for setting in HEADS),
    ]
    return [winnow.method(*each) for each in dict.fromkeys(asked)]


def _kept(examined: Examined, kind: str, number: int, methods: Sequence[Method]) -> Iterator[Record]:
    waiting = winnow.CompressedCache(examined.model, winnow.method("full"), defer=True)
    prompt = examined.prompt(kind, number)
    with torch.no_grad():
        examined.model(prompt, cache=waiting, logits_to_keep=1)
    for method in methods:
        cache = waiting.compressed_by(method)
        layers = [index for index, layer in enumerate(cache.layers) if isinstance(layer, CompressedLayer)]
        masks = [kept_mask(cache.kept(index), prompt.shape[1]) for index in layers]
        anywhere = torch.stack([mask.any(dim=0) for mask in masks]).cumsum(dim=0) > 0
        yield {
            "method": str(method),
            "depth": anywhere.double().mean(dim=1).tolist(),
            "rtd": fmean(retained_diversity(mask) for mask in masks),
            "iou": fmean(mean_over_pairs(head_overlap(mask)) or 0.0 for mask in masks),
        }


def _mean(records: Sequence[Record]) -> Kept:
    depth = [fmean(layer) for layer in zip(*(record["depth"] for record in records), strict=True)]
    return Kept(depth, fmean(record["rtd"] for record in records), fmean(record["iou"] for record in records))


def _of(found: dict[str, Kept], name: str, budget: str) -> Kept:
    return found[str(winnow.method(name, budget))]


def _drops(found: dict[str, Kept]) -> str:
    body = []
    for name, paper in DROPS.items():
        ours = [_drop(_of(found, name, budget)) for budget in EVICTED.values()]
        body.append([f"`{name}`", *ours, *(f"-{percent:.1f} %" for percent in paper)])
    head = ["tokens kept nowhere", *(f"{rate} evicted" for rate in EVICTED), *(f"paper, {rate}" for rate in EVICTED)]
    return markdown_table(head, body)


def _drop(kept: Kept) -> str:
    return f"-{100 * (1 - kept.depth[-1]):.1f} %"


def _depth(found: dict[str, Kept]) -> str:
    layers = len(next(iter(found.values())).depth)
    marks = sorted({1, *(max(1, round(share * layers / 4)) for share in range(1, 5))})
    body = [
        [f"`{name} @ {budget}`", *(f"{100 * _of(found, name, budget).depth[mark - 1]:.1f} %" for mark in marks)]
        for budget in DEPTH_BUDGETS
        for name in DEPTH
    ]
    return markdown_table(["coverage after", *(f"{mark} layer{'s' * (mark > 1)}" for mark in marks)], body)


def _heads(found: dict[str, Kept]) -> str:
    cells = [(setting.label, _of(found, setting.method, HEADS_BUDGET)) for setting in HEADS]
    body = [
        [label, f"{100 * kept.depth[-1]:.1f} %", f"{100 * kept.rtd:.2f} %", f"{kept.iou:.2f}"] for label, kept in cells
    ]
    return markdown_table([f"at {HEADS_BUDGET} slots", "coverage", "RTD", "IoU"], body)
