"""BABILong's comparison, against values worked out by hand from its code."""

from __future__ import annotations

import pytest

from winnow.metrics.babilong import babilong, first_sentence_is_over
from winnow.metrics.base import Expected, MetricError

ROOMS = Expected(("kitchen",), ("bathroom", "bedroom", "hallway", "kitchen", "office"))


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("kitchen", 1),
        ("The most recent location of Mary is the KITCHEN. Before, the office.", 1),
        ("\nAnswer: kitchen", 1),
        ("The milk is in the kitchen, not in the garden", 1),  # the question named the garden
        ("The kitchen or the office.", 0),
        ("The office. The kitchen.", 0),
        (".kitchen", 0),
        ("kitchen <example> office", 1),
        ("kitchen <context> office", 1),
        ("kitchenette", 1),
        ("", 0),
    ],
)
def test_the_right_label_alone_in_the_first_sentence(answer, worth):
    assert babilong(answer, ROOMS) == worth


def test_what_comes_after_the_first_sentence_changes_nothing():
    assert not first_sentence_is_over("The kitchen", ROOMS)
    assert first_sentence_is_over("The kitchen.", ROOMS)
    assert first_sentence_is_over("The kitchen <Example>", ROOMS)


def test_a_right_answer_is_one_of_the_choices():
    with pytest.raises(MetricError, match="none of the 5 choices"):
        babilong("garden", Expected(("garden",), ROOMS.choices))
