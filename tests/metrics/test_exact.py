"""Answers that are right word for word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.judged import worth
from winnow.metrics import Expected, metric
from winnow.metrics.judge import Judge

PIECES = [
    "St",
    "Louis",
    "U",
    "S",
    "3",
    "14",
    "-",
    ".",
    "!",
    "。",
    ",",
    " ",
    "\n",
    "_",
    "plum",
    "pl",
    "é",
    "\u0301",
    "Σ",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=7).map("".join)


@pytest.mark.parametrize("right", ["3.14", "St. Louis", "U.S. Congress", "J. R. R. Tolkien", "main.py", "C++", "-5"])
@pytest.mark.parametrize(
    "said", ["{}", " {} ", "{}.", "{}. It says so.", "{}\nQuestion: and", "{}!", '"{}."', "**{}**"]
)
def test_a_right_answer_with_marks_of_its_own(right: str, said: str) -> None:
    assert worth("exact_match", said.format(right), right) == 1


@pytest.mark.parametrize(
    "said", ["mango", " Mango.", "mango. question: what", "mango\nmore", "MANGO\r\nmore", "mango!"]
)
def test_case_blanks_and_what_follows_the_first_sentence_do_not_count(said: str) -> None:
    assert worth("exact_match", said, "mango") == 1


def test_every_word_of_a_long_answer_is_wanted() -> None:
    right = "the favorite fruit of alice is mango"
    assert worth("exact_match", "The favorite fruit of Alice is mango", right) == 1
    assert worth("exact_match", "the favorite fruit of bob is mango", right) == 0
    assert worth("exact_match", "mango", right) == 0


@pytest.mark.parametrize("said", ["$", " $ ", "$\nQuestion: and"])
def test_an_answer_without_words_counts_as_it_is_written(said: str) -> None:
    assert worth("exact_match", said, "$") == 1


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("3.14", "3"),
        ("3", "3.14"),
        ("3.15", "3.14"),
        ("-5", "5"),
        ("U.S. Congress", "U"),
        ("main.py", "main"),
        ("mangos", "mango"),
        ("mango apple", "mango"),
        ("mango, apple", "mango"),
        ("the mango", "mango"),
        ("apple. mango", "mango"),
        ("", "mango"),
        (".", "mango"),
        ("+", "-"),
        ("का", "कि"),
    ],
)
def test_another_answer(answer: str, right: str) -> None:
    assert worth("exact_match", answer, right) == 0


@pytest.mark.parametrize(
    ("answer", "settled"),
    [
        ("mango", False),
        ("mango.", False),  # mango.py
        ("mango. ", True),
        ('mango."', True),
        ("mango\n", True),
        ("man", False),
        ("man ", True),
        ("apple", True),
        ("mango pie", True),
        ("", False),
    ],
)
def test_an_answer_is_settled_as_early_as_it_can_be(answer: str, settled: bool) -> None:
    assert metric("exact_match").settled(answer, Expected(("mango",))) is settled


def test_one_right_answer_that_is_said_settles_it_whatever_the_others_are() -> None:
    judged = metric("exact_match")
    assert judged.settled("mango. ", Expected(("mango", "mango pie")))
    assert not judged.settled("mango", Expected(("apple", "mango pie")))
    assert judged.settled("plum", Expected(("apple", "mango pie")))


@given(begun=TEXTS, more=TEXTS, right=st.lists(TEXTS, min_size=1, max_size=3))
def test_nothing_changes_what_is_settled(begun: str, more: str, right: list[str]) -> None:
    judged, expected = metric("exact_match"), Expected(tuple(right))
    if judged.settled(begun, expected):
        assert judged.score(begun + more, expected) == judged.score(begun, expected)


@given(right=TEXTS)
def test_the_right_answer_is_right(right: str) -> None:
    assert worth("exact_match", right, right) == 1


def test_a_character_that_lacks_some_of_its_bytes_may_become_a_letter() -> None:
    judge = Judge(metric("exact_match"), Expected(("París",)))
    assert not judge.settled("Par\N{REPLACEMENT CHARACTER}")
    assert judge.settled("Par \N{REPLACEMENT CHARACTER}x")
