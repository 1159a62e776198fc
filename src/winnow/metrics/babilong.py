"""BABILong's comparison: the first sentence names the right label and no other (Kuratov et al. 2024).

Labels that the question names are never right ones and do not count: examples have only the others as choices.
"""

from __future__ import annotations

from winnow.metrics.base import Expected, MetricError
from winnow.metrics.several import right_answers

_ENDS = (".", "<context>", "<example>")


def babilong(answer: str, expected: Expected) -> float:
    """1 where a right answer is the only choice in the first sentence, case aside; else 0.

    Raises MetricError where no right answer is one of the choices.
    """
    labels = {choice.lower() for choice in expected.choices}
    right = {each.lower() for each in right_answers(expected)} & labels
    if not right:
        raise MetricError(f"The right answer, {expected.answers[0]!r}, is none of the {len(labels)} choices.")
    said = answer.lower()
    for end in _ENDS:
        said = said.split(end)[0]
    named = {label for label in labels if label in said}
    return float(len(named) == 1 and named <= right)


def first_sentence_is_over(answer: str, expected: Expected) -> bool:
    """True if nothing that may still be generated is looked at."""
    return any(end in answer.lower() for end in _ENDS)
