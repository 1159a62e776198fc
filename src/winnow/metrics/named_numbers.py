"""Numbers that an answer names, against the one that is right; LongBench's scores of that kind (Bai et al. 2024)."""

from __future__ import annotations

import re

from winnow.metrics.base import MetricError
from winnow.metrics.several import best_of_several

_PARAGRAPH = re.compile(r"Paragraph (\d+)")
_PARAGRAPH_ZH = re.compile(r"段落(\d+)")
_COUNT = re.compile(r"\A\s*(\d+)\s*\Z")


@best_of_several
def retrieval(answer: str, right: str) -> float:
    """Share of the numbers in the answer that name the right paragraph, as in "Paragraph 7" (retrieval_score)."""
    return _share(answer, _number(_PARAGRAPH, right))


@best_of_several
def retrieval_zh(answer: str, right: str) -> float:
    """`retrieval` for right answers such as "段落7" (retrieval_zh_score)."""
    return _share(answer, _number(_PARAGRAPH_ZH, right))


@best_of_several
def count(answer: str, right: str) -> float:
    """Share of the numbers in the answer that are the right one (count_score)."""
    return _share(answer, _number(_COUNT, right))


def _number(pattern: re.Pattern[str], right: str) -> str:
    if not (found := pattern.search(right)):
        raise MetricError(f"The right answer {right!r} does not hold the number that this metric looks for.")
    return found[1]


def _share(answer: str, right: str) -> float:
    # Compared as text: "07" is not 7.
    numbers = re.findall(r"\d+", answer)
    return numbers.count(right) / len(numbers) if numbers else 0.0
