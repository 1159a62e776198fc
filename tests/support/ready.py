"""Methods ready for use: with random head scores where they need some, without a budget where they take none."""

from __future__ import annotations

from typing import Any

import torch

import winnow
from winnow import HeadScores, Method

_RECORDS = {record.name: record for record in winnow.methods()}
# What a preset of head scores wants the scores to be.
_KINDS = {"headkv-r", "headkv-er", "headkv-r2", "cokv", "duoattention"}
UNBUDGETED = ("full", "duoattention", "duo", "masking")
REPLAYED = ("kvzip", "kvzip-plus")
"""Those that have a prompt read twice, so that `winnow.compress` and not the cache alone compresses it."""
METHODS = [record.name for record in winnow.methods() if record.kind == "method" and record.name not in REPLAYED]
BUDGETED = [name for name in METHODS if name not in UNBUDGETED]


def random_scores(shape: tuple[int, int], method: str = "random", seed: int = 0) -> HeadScores:
    """Positive scores [L, H], some of them large."""
    values = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 4 + 1e-3
    return HeadScores(values, method)


def ready(name: str, budget: int | str | None, shape: tuple[int, int] = (4, 2), **parameters: Any) -> Method:
    """A method or "method+part" for a model of `shape` layers and KV heads."""
    parts = [part.partition("(")[0] for part in name.split("+")]
    if any(p.name == "scores" for part in parts for p in _RECORDS[part].parameters):
        parameters["scores"] = random_scores(shape, parts[0] if parts[0] in _KINDS else "random")
    if any(part in UNBUDGETED for part in parts):
        budget = None
    return winnow.method(name, budget, **parameters)
