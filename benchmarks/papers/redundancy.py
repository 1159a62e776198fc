"""Redundancy of queries and of heads before anything is kept, by depth. ApertureKV's Table 6, Fig. 5 and Fig. 6."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import winnow
from claims import HEADS_BUDGET, STRENGTHS, WINDOW
from evaluated import Study
from examined import KINDS, Examined
from reporting import markdown_table
from winnow import Method
from winnow.allocate.raba import Divergence, distinctiveness, distributions, jensen_shannon
from winnow.cache.prefix import Prefix
from winnow.diagnostics.divergence import diversified_attention
from winnow.diagnostics.pairs import mean_over_pairs
from winnow.diagnostics.similarity import mean_cosine
from winnow.estimate.records import Record
from winnow.report import draw_divergences
from winnow.score.diversity import diversified
from winnow.typed import Sized
from winnow.view import LayerView, last_queries

_Layers = Annotated[list[float], Sized(1)]
DIVERGENCES: tuple[Divergence, ...] = get_args(Divergence)
TYPES: dict[str, Any] = {
    "cosine": _Layers,
    "printed": _Layers,
    "plain": _Layers,
    **dict.fromkeys(DIVERGENCES, _Layers),
    "pairs": list[list[list[float]]],
}


class Redundancy(NamedTuple):
    """Means over prompts, layer by layer."""

    cosine: list[float]
    """Between queries of the window."""
    printed: list[float]
    """JSD in nats of two query heads' token scores (Eq. 13 and 15), mean over the pairs."""
    plain: list[float]
    """The same of the attention itself, without the second softmax of Eq. 13."""
    spread: dict[Divergence, list[float]]
    """Part of a layer's largest D_h that its smallest lacks, by the divergence; 0 where all KV heads count alike."""
    pairs: list[NDArray[np.float64]]
    """[Hq, Hq] of every layer: `printed`, pair by pair, of the first prompt."""


@dataclass
class Watching:
    """Looks at every layer of one prompt while it is compressed."""

    strength: float
    queries: int = WINDOW
    found: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in TYPES})

    def see(self, view: LayerView, prefix: Prefix) -> None:
        """Notes cosines and divergences of a layer."""
        attention = diversified_attention(view, self.queries, self.strength).double()
        pairs = jensen_shannon(distributions(attention))
        plain = jensen_shannon(attention / attention.sum(dim=-1, keepdim=True))
        self.found["cosine"].append(mean_cosine(diversified(last_queries(view.queries, self.queries), self.strength)))
        self.found["printed"].append(mean_over_pairs(pairs) or 0.0)
        self.found["plain"].append(mean_over_pairs(plain) or 0.0)
        self.found["pairs"].append(pairs.tolist())
        heads = distributions(attention.view(view.keys.shape[0], -1, attention.shape[-1]).mean(dim=1))
        for divergence in DIVERGENCES:
            self.found[divergence].append(_spread(distinctiveness(heads, divergence)))


def measured(study: Study, tokens: int, count: int) -> dict[str, dict[float, Redundancy]]:
    """Findings by the kind of prompt and λ."""
    examined = Examined(study, "redundancy", TYPES, tokens, count)
    methods = _methods()
    found = {}
    for kind in KINDS:
        title = f"{study.title}, {kind}: redundancy"
        records = examined.over(kind, title, methods.values(), partial(_looked_into, examined, kind))
        found[kind] = {strength: _mean(records[str(method)]) for strength, method in methods.items()}
    return found


def section(found: dict[str, dict[float, Redundancy]], tokens: int) -> str:
    """The tables of a model."""
    return "\n\n".join(
        f"#### Prompts of {tokens:,} tokens: {words}\n\n{_by_depth(found[kind])}\n\n{_spreads(found[kind])}"
        for kind, words in KINDS.items()
    )


def draw(folder: Path, study: Study, found: dict[str, dict[float, Redundancy]], tokens: int) -> Path:
    """Draws the map of ApertureKV's Fig. 5, of the first prompt with a question; returns the path written."""
    strength = STRENGTHS[-1]
    seen = found["question"][strength]
    subtitle = f"{study.title} · {tokens:,} tokens · Eq. 13 and 15 with λ = {strength:g} · dark: alike"
    path = folder / f"papers-divergence-{study.folder.name}.png"
    means = [mean_over_pairs(torch.from_numpy(layer)) for layer in seen.pairs]
    return draw_divergences(path, seen.pairs, means, "How far the scores of two heads are apart", subtitle)


def _methods() -> dict[float, Method]:
    """A method whose queries are diversified as much, by λ."""
    return {strength: winnow.method("snapkv(over=prefix)", HEADS_BUDGET, diversify=strength) for strength in STRENGTHS}


def _looked_into(examined: Examined, kind: str, number: int, missing: Sequence[Method]) -> Iterator[Record]:
    strengths = {str(method): strength for strength, method in _methods().items()}
    for method in missing:
        watching = Watching(strengths[str(method)])
        winnow.compress(examined.model, examined.prompt(kind, number), method, observer=watching)
        yield {"method": str(method), **watching.found}


def _spread(distinct: Tensor) -> float:
    return float(1 - distinct.min() / distinct.max()) if distinct.max() > 0 else 0.0


def _mean(records: Sequence[Record]) -> Redundancy:
    def layers(name: str) -> list[float]:
        return [fmean(layer) for layer in zip(*(record[name] for record in records), strict=True)]

    pairs = [np.array(layer) for layer in records[0]["pairs"]]
    spread = {divergence: layers(divergence) for divergence in DIVERGENCES}
    return Redundancy(layers("cosine"), layers("printed"), layers("plain"), spread, pairs)


def _by_depth(found: dict[float, Redundancy]) -> str:
    """A row for every quarter of the layers: are heads and queries alike, the deeper the more?"""
    count = len(next(iter(found.values())).cosine)
    edges = [round(part * count / 4) for part in range(5)]
    body = []
    for start, stop in pairwise(edges):
        row = [f"{start}–{stop - 1}" if stop > start + 1 else f"{start}"]
        for each in found.values():
            row += [
                f"{fmean(each.cosine[start:stop]):.2f}",
                f"{1e6 * fmean(each.printed[start:stop]):.2f}",
                f"{fmean(each.plain[start:stop]):.3f}",
            ]
        body.append(row)
    columns = [
        f"{name}, λ = {strength:g}"
        for strength in found
        for name in ("cosine of queries", "JSD of heads, 10⁻⁶ nats", "JSD of attention, nats")
    ]
    return markdown_table(["layers", *columns], body)


def _spreads(found: dict[float, Redundancy]) -> str:
    """A row for every divergence: how much do the D_h of a layer's KV heads differ, and so their shares?"""
    seen = found[STRENGTHS[-1]]
    body = [[f"`{name}`", f"{fmean(spread):.1e}", f"{max(spread):.1e}"] for name, spread in seen.spread.items()]
    return markdown_table(["1 − smallest / largest D_h of a layer", "mean", "largest"], body)
