"""Judgment of a generated answer: overlap of its words with the right answer's."""

from __future__ import annotations

import re
from collections import Counter

from winnow.estimate.needle.examples import NeedleExample
from winnow.estimate.needle.settings import NeedleKind
from winnow.tasks.prompts import normalize

THRESHOLD = 0.5
"""The overlap that a right answer is above."""


def is_right(kind: NeedleKind, example: NeedleExample, generated: str) -> bool:
    """True if a run counts: ROUGE-1 recall above one half for R, token F1 above one half for ER and R2."""
    overlap = rouge1_recall if kind is NeedleKind.R else token_f1
    return overlap(example.judged(generated), example.answer) > THRESHOLD


def rouge1_recall(generated: str, answer: str) -> float:
    """Share of the answer's words that were generated, each as often as it was; no stemming."""
    wanted = Counter(normalize(answer).split())
    return _common(Counter(normalize(generated).split()), wanted) / max(1, wanted.total())


def token_f1(generated: str, answer: str) -> float:
    """F1 of the words, without articles, as in SQuAD and LongBench."""
    said, wanted = _content(generated), _content(answer)
    common = _common(said, wanted)
    return 2 * common / (said.total() + wanted.total()) if common else 0.0


def _content(text: str) -> Counter[str]:
    return Counter(re.sub(r"\b(a|an|the)\b", " ", normalize(text)).split())


def _common(said: Counter[str], wanted: Counter[str]) -> int:
    return (said & wanted).total()
