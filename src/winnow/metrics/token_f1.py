"""Words shared with the right answer, as SQuAD counts them (Rajpurkar et al. 2016); LongBench's qa_f1_score."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from winnow.metrics.several import best_of_several

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@best_of_several
def token_f1(answer: str, right: str) -> float:
    """Harmonic mean of precision and recall over words; case, punctuation and articles do not count."""
    return f1(_tokens(answer), _tokens(right))


def f1(said: Sequence[str], right: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of what was said; a token counts as often as it stands in both."""
    shared = sum((Counter(said) & Counter(right)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(said), shared / len(right)
    return 2 * precision * recall / (precision + recall)


def _tokens(text: str) -> list[str]:
    # Punctuation goes first, as in SQuAD: "a." is an article then, "a-b" the word "ab".
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()
