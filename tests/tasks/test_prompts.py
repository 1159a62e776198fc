"""Text of prompts, and the comparison of answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.tasks import exact_match, format_prompt, generate_document, lead_in
from winnow.tasks.prompts import is_settled, to_text

WORDS = st.lists(st.sampled_from(["is", "Bob", ",", ".", "bo", " ", "\n", "plum", "the"]), max_size=8).map("".join)


@given(begun=WORDS, more=WORDS, answer=WORDS)
def test_a_settled_text_is_settled(begun: str, more: str, answer: str) -> None:
    if is_settled(begun, answer):
        assert exact_match(begun + more, answer) == exact_match(begun, answer)


@pytest.mark.parametrize(
    ("generated", "right"),
    [
        ("mango", True),
        (" Mango.", True),
        ("mango. question: what", True),
        ("mango\nmore", True),
        ("mangos", False),
        ("mango apple", False),
        ("", False),
        (".", False),
    ],
)
def test_exact_match(generated, right):
    assert exact_match(generated, "mango") is right


def test_exact_match_wants_every_word_of_a_long_answer():
    answer = "the favorite fruit of alice is mango"
    assert exact_match("The favorite fruit of Alice is mango", answer)
    assert not exact_match("the favorite fruit of bob is mango", answer)
    assert not exact_match("mango", answer)


def test_sentences_read_like_english():
    assert to_text(["of", "alice", "and", "bob", ",", "yes", "."]) == "Of Alice and Bob, yes."


@pytest.mark.parametrize(
    ("question", "lead"),
    [
        ("What is the favorite fruit of Alice?", "the favorite fruit of Alice"),
        ("what is the code of the castle ?", "the code of the castle"),
        ("What is the favorite tea of the older one between Al and Bo?", "between Al and Bo, the older one"),
        ("What is the value of variable gox?", "variable gox"),
        ("Who wrote it?", ""),
        ("What is the author trying to say?", ""),
    ],
)
def test_the_prompt_ends_with_the_beginning_of_the_answer(question, lead):
    assert lead_in(question) == lead
    assert format_prompt("Text.", question).endswith(f"Answer: {lead}" if lead else "Answer:")


def test_every_generated_question_has_a_lead_in():
    for seed in range(4):
        questions = generate_document(seed).questions
        # No answer is a single word: its first token would not depend on what was evicted.
        assert all(lead_in(question.text) and len(question.answer.split()) > 1 for question in questions)
