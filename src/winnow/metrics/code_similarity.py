"""Likeness of a line of code to the right one; LongBench's code_sim_score (Bai et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterable

from winnow.metrics.base import Expected
from winnow.metrics.libraries import library
from winnow.metrics.several import best_of_several

_NO_CODE = ("`", "#", "//")


@best_of_several
def code_similarity(answer: str, right: str) -> float:
    """Percent of the characters that need no edit between the first line of code and the right one, rounded.

    A line with a backquote, # or // is a comment. The integers are those of fuzzywuzzy's fuzz.ratio over the package
    Levenshtein; without it fuzzywuzzy falls back on difflib, whose ratio is another one.
    """
    line = _first_code(answer.lstrip("\n").split("\n")) or ""
    if not line or not right:
        return float(line == right)
    return float(round(library("rapidfuzz.fuzz").ratio(line, right))) / 100


def has_code(answer: str, expected: Expected) -> bool:
    """True if the first line of code is there to its end."""
    return _first_code(answer.lstrip("\n").split("\n")[:-1]) is not None


def _first_code(lines: Iterable[str]) -> str | None:
    return next((line for line in lines if not any(mark in line for mark in _NO_CODE)), None)
