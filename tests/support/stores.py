"""Stores of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from winnow.heads import HeadScores
from winnow.store import Bits, Kivi, MixedBits, Packed, Spark, SparkG, SparkP, Store, Think

HEAD_SCORES = HeadScores(torch.tensor([[0.5, 0.1, 0.8, 0.3], [0.2, 0.9, 0.7, 0.4]]), "random")
STORES: dict[str, Store] = {
    "spark": Packed(Spark()),
    "spark, query signs": Packed(Spark(ratio=0.8, sign="query", values=0.5)),
    "spark, gaussian": Packed(Spark(recovery="gaussian", recent="pruned")),
    "spark, squared, exponential": Packed(Spark(recovery="exponential", saliency="squared")),
    "spark, constant": Packed(Spark(recovery="constant", sign="query"), Bits(high=8)),
    "spark, nothing": Packed(Spark(ratio=0.8, recovery="none")),
    "spark-g, segments": Packed(SparkG(by="segments")),
    "spark-p": Packed(SparkP(share=0.9)),
    "spark-g": Packed(SparkG(groups=5), Bits(high=8)),
    "spark and 4 bits": Packed(Spark(values=0.3), Bits(high=4)),
    "think": Packed(Think()),
    "think and kivi": Packed(Think(ratio=0.4), Kivi()),
    "2 bits": Packed(precision=Bits(high=2)),
    "4 bits by 32": Packed(precision=Bits(high=4, group=32)),
    "spark and 3 bits": Packed(Spark(ratio=0.3), Bits(high=3)),
    "kivi": Packed(precision=Kivi(width=2)),
    "8 and 2 bits": Packed(precision=Bits(high=8, low=2, scores=HEAD_SCORES)),
    "4 bits, rotated": Packed(precision=Bits(high=4, rotate=True)),
    "keys in 8 and values in 4 bits": Packed(precision=Bits(k=8, v=4)),
    "values in 4 bits, rotated": Packed(precision=Bits(high=16, v=4, rotate=True)),
    "2 bits, rotated and centered": Packed(precision=Bits(k=2, v=8, rotate="auto", center=True)),
    "4 bits, rotated, centered and smoothed": Packed(precision=Bits(high=4, rotate=True, center=True, smooth=True)),
    "kivi, rotated": Packed(precision=Kivi(rotate=True)),
    "mixed bits, rotated and smoothed": Packed(
        precision=MixedBits(mean=6, rotate=True, smooth=True, scores=HEAD_SCORES)
    ),
    "spark and mixed bits": Packed(Spark(), MixedBits(mean=6, scores=HEAD_SCORES)),
}


def plain_bits(**given: Any) -> Bits:
    """Bits of numbers as they are, but for what is given, whatever `Bits` does to outliers by default."""
    return Bits(**({"rotate": False, "center": False, "smooth": False} | given))


def by_scores(store: Packed) -> bool:
    """True if it is for the four heads of the table alone."""
    return getattr(store.precision, "scores", None) is not None


ALL: dict[str, Packed] = {
    **{name: store for name, store in STORES.items() if isinstance(store, Packed) and not by_scores(store)},
    "8 bits": Packed(precision=Bits(high=8)),
    "4 bits by 32, signed": Packed(precision=Bits(high=4, group=32, scales="signed")),
    "spark and 2 bits, signed": Packed(Spark(), Bits(high=2, scales="signed")),
    "6 bits": Packed(precision=Bits(high=6)),
    "spark-p and 6 bits": Packed(SparkP(share=0.9), Bits(high=6)),
    "spark-p and 2 bits": Packed(SparkP(share=0.9, recent="pruned"), Bits(high=2)),
    "think and 8 bits": Packed(Think(ratio=0.7), Bits(high=8)),
}


def scores_of(values: Sequence[Sequence[float]]) -> HeadScores:
    """Head scores [L, H]."""
    return HeadScores(torch.tensor(values, dtype=torch.float64), "random")
