"""HeadKV's published tables (Fu et al. 2024, arXiv 2410.19258): {"layer-head": [score of every accepted run]}."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from winnow.errors import HeadScoresError
from winnow.heads.files import numbers, read_json
from winnow.heads.scores import HeadScores

HeadKVKind = Literal["r", "er", "r2"]
LAYOUT = 'a HeadKV table {"layer-head": [score of every run]}'

_HEAD = re.compile(r"(0|[1-9]\d{0,4})-(0|[1-9]\d{0,4})")
# The end of a published file's name, and what it says of the kind.
_ENDINGS: dict[str, HeadKVKind] = {"_retrieval_reasoning_heads": "r2", "_retrieval_heads": "r"}


def read_headkv(path: Path | str, kind: HeadKVKind | None = None) -> HeadScores:
    """A table per query head [L, Hq]: the mean over the accepted runs, not normalized.

    kind: which of HeadKV's estimates it is; without it, the file's name has to say. Raises HeadScoresError where the
    name does not, for heads that are missing, and for heads without runs or with fewer than others.
    """
    path = Path(path)
    content = read_json(path, LAYOUT)
    model, guessed = _said_by_name(path)
    kind = kind or guessed
    if kind is None:
        raise HeadScoresError(
            f"{path} does not say in its name which scores it holds (…_retrieval_heads.json is R, "
            "…_retrieval_reasoning_heads.json is R2): give the kind, r, er or r2."
        )
    if kind not in get_args(HeadKVKind):
        raise HeadScoresError(f"A HeadKV table is of kind r, er or r2, not {kind!r}.")
    runs = _runs(path, content)
    try:
        return HeadScores(
            runs.mean(dim=-1), f"headkv-{kind}", heads="query", model=model, samples=runs.shape[-1], path=path
        )
    except HeadScoresError as problem:
        raise HeadScoresError(f"{path}: {problem}") from None


def is_headkv(content: Mapping[str, object]) -> bool:
    """True if the object of a JSON file is laid out as such a table."""
    return any(_HEAD.fullmatch(key) for key in content)


def _said_by_name(path: Path) -> tuple[str, HeadKVKind | None]:
    """Model and kind, as far as the name tells them."""
    for ending, kind in _ENDINGS.items():
        if path.stem.endswith(ending):
            return path.stem.removesuffix(ending), kind
    return "", None


def _runs(path: Path, content: Mapping[str, object]) -> Tensor:
    """[L, Hq, runs]"""
    by_head = {_head(path, key): numbers(values, f"{path}: head {key}") for key, values in content.items()}
    if not by_head:
        raise HeadScoresError(f"{path} names no head: it is not {LAYOUT}, or was written before any run.")
    layers, heads = (1 + max(column) for column in zip(*by_head, strict=True))
    missing = layers * heads - len(by_head)
    if missing:
        layer, head = next(place for place in product(range(layers), range(heads)) if place not in by_head)
        raise HeadScoresError(
            f"{path} has no scores for {missing} of {layers * heads} heads ({layers} layers of {heads}), the first is "
            f"{layer}-{head}: the file is not complete; copy it again."
        )
    runs = len(by_head[0, 0])
    for (layer, head), scores in by_head.items():
        if len(scores) != runs or not runs:
            raise HeadScoresError(
                f"{path}: head {layer}-{head} has {len(scores)} runs, head 0-0 has {runs}: every head is scored in "
                "every accepted run, so the file is damaged or no run was accepted; estimate it again."
            )
    ordered = [by_head[place] for place in product(range(layers), range(heads))]
    return torch.stack(ordered).view(layers, heads, runs)


def _head(path: Path, key: str) -> tuple[int, int]:
    match = _HEAD.fullmatch(key)
    if match is None:
        raise HeadScoresError(f'{path} has the key {key!r}, which is not a head "layer-head": it is not {LAYOUT}.')
    return int(match[1]), int(match[2])
