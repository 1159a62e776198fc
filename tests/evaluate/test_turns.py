"""Conversations as text."""

from __future__ import annotations

import pytest

from winnow.bundled import MODEL_PATH
from winnow.evaluate.prompts import prompt_text
from winnow.evaluate.turns import Subject, Turn, answered, conversation_text
from winnow.models import open_model

ROLES = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% endif %}"
)
WAYS = [None, ROLES]


@pytest.fixture(params=WAYS)
def tokenizer(request):
    found = open_model(MODEL_PATH).tokenizer
    found.chat_template = request.param
    return found


FIRST = {
    None: (" The lemon is red.\n\nQuestion: Why?\nAnswer:", "<user> The lemon is red.\n\nWhy?</><assistant>"),
    "": (
        " The lemon is red.\n\nQuestion: Why?\nAnswer:",
        "<system></><user> The lemon is red.\n\nWhy?</><assistant>",
    ),
    "Be brief.": (
        "Be brief.\n\n The lemon is red.\n\nQuestion: Why?\nAnswer:",
        "<system>Be brief.</><user> The lemon is red.\n\nWhy?</><assistant>",
    ),
}


@pytest.mark.parametrize("system", [None, "", "Be brief."])
def test_the_first_question_is_the_prompt_of_a_document(tokenizer, system):
    plain, written = FIRST[system]
    assert prompt_text(tokenizer, " The lemon is red.", "Why?", system) == (
        (plain, True) if tokenizer.chat_template is None else (written, False)
    )


@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("document", [None, "The lemon is red."])
@pytest.mark.parametrize("answer", ["is red", "", " is red", "one.\n\ntwo"])
def test_every_turn_continues_the_one_before(tokenizer, system, document, answer):
    subject, turns, said = Subject(document, system), [], ""
    for question in ("What is red?", "Why?", "Why?"):
        text = conversation_text(tokenizer, subject, turns, question)
        assert text.startswith(said)
        assert text.count(question) > sum(turn.question == question for turn in turns)
        said = answered(tokenizer, text, answer)
        turns.append(Turn(question, answer))


def test_roles_and_order():
    tokenizer = open_model(MODEL_PATH).tokenizer
    subject, turns = Subject("A text.", "Be brief."), [Turn("Why?", "So.")]
    assert conversation_text(tokenizer, subject, turns, "And?") == (
        "Be brief.\n\nA text.\n\nQuestion: Why?\nAnswer: So.\n\nQuestion: And?\nAnswer:"
    )
    tokenizer.chat_template = ROLES
    assert conversation_text(tokenizer, subject, turns, "And?") == (
        "<system>Be brief.</><user>A text.\n\nWhy?</><assistant>So.</><user>And?</><assistant>"
    )
    assert conversation_text(tokenizer, Subject(), [], "And?") == "<user>And?</><assistant>"
