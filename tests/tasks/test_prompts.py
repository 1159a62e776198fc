"""Text of prompts."""

from __future__ import annotations

import pytest

from winnow.tasks import format_prompt, generate_document, lead_in
from winnow.tasks.prompts import to_text


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
