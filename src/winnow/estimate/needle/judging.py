"""Judgment of a generated answer: overlap of its words with the right answer's."""

from __future__ import annotations

from collections import Counter

from winnow.estimate.needle.examples import NeedleExample
from winnow.estimate.needle.settings import NeedleKind
from winnow.metrics import Expected
from winnow.metrics.token_f1 import token_f1
from winnow.tasks.prompts import normalize

THRESHOLD = 0.5
"""The overlap that a right answer is above."""


def is_right(kind: NeedleKind, example: NeedleExample, generated: str) -> bool:
    """True if a run counts: ROUGE-1 recall above one half for R, token F1 above one half for ER and R2."""
    said = example.judged(generated)
    if kind is NeedleKind.R:
        return rouge1_recall(said, example.answer) > THRESHOLD
    return token_f1(said, Expected((example.answer,))) > THRESHOLD


def rouge1_recall(generated: str, answer: str) -> float:
    """Share of the answer's words that were generated, each as often as it was; no stemming."""
    wanted = Counter(normalize(answer).split())
    return (Counter(normalize(generated).split()) & wanted).total() / max(1, wanted.total())
