"""Right answers somewhere in what a model says, as RULER counts them (Hsieh et al. 2024)."""

from __future__ import annotations

from winnow.metrics.base import Expected
from winnow.metrics.several import right_answers


def contains_all(answer: str, expected: Expected) -> float:
    """Share of the right answers that the answer holds, case aside (RULER's string_match_all)."""
    found = _found(answer, expected)
    return sum(found) / len(found)


def contains_any(answer: str, expected: Expected) -> float:
    """1 where the answer holds one of the right answers, case aside (RULER's string_match_part)."""
    return float(any(_found(answer, expected)))


def all_are_there(answer: str, expected: Expected) -> bool:
    """True if the answer holds every right answer, whatever follows."""
    return all(_found_for_good(answer, expected))


def any_is_there(answer: str, expected: Expected) -> bool:
    """True if the answer holds a right answer, whatever follows."""
    return any(_found_for_good(answer, expected))


def _found(answer: str, expected: Expected) -> list[bool]:
    said = answer.lower()
    return [right.lower() in said for right in right_answers(expected)]


def _found_for_good(answer: str, expected: Expected) -> list[bool]:
    # A capital sigma is lowered to another letter at the end of a word than within it.
    at_end, within = answer.lower(), f"{answer}a".lower()[:-1]
    return [right.lower() in at_end and right.lower() in within for right in right_answers(expected)]
