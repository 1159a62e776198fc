"""Conversations as text."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from winnow.bundled import MODEL_PATH
from winnow.errors import PromptError
from winnow.evaluate.prompts import prompt_text
from winnow.evaluate.turns import LEAD_INS, Subject, Turn, answered, conversation_text
from winnow.models import open_model
from winnow.tasks.prompt_style import PromptStyle

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
    assert prompt_text(tokenizer, " The lemon is red.", "Why?", PromptStyle(system=system)) == (
        (plain, True) if tokenizer.chat_template is None else (written, False)
    )


@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("document", [None, "The lemon is red."])
@pytest.mark.parametrize("answer", ["is red", "", " is red", "one.\n\ntwo"])
def test_every_turn_continues_the_one_before(tokenizer, system, document, answer):
    subject, turns, said = Subject(document, PromptStyle(system=system)), [], ""
    for question in ("What is red?", "Why?", "Why?"):
        text = conversation_text(tokenizer, subject, turns, question)
        assert text.startswith(said)
        assert text.count(question) > sum(turn.question == question for turn in turns)
        said = answered(tokenizer, text, answer)
        turns.append(Turn(question, answer))


def test_roles_and_order():
    tokenizer = open_model(MODEL_PATH).tokenizer
    subject, turns = Subject("A text.", PromptStyle(system="Be brief.")), [Turn("Why?", "So.")]
    assert conversation_text(tokenizer, subject, turns, "And?") == (
        "Be brief.\n\nA text.\n\nQuestion: Why?\nAnswer: So.\n\nQuestion: And?\nAnswer:"
    )
    tokenizer.chat_template = ROLES
    assert conversation_text(tokenizer, subject, turns, "And?") == (
        "<system>Be brief.</><user>A text.\n\nWhy?</><assistant>So.</><user>And?</><assistant>"
    )
    assert conversation_text(tokenizer, Subject(), [], "And?") == "<user>And?</><assistant>"


def test_only_the_bundled_model_is_given_the_beginning_of_the_answer(tmp_path):
    """Any other without a chat template has an ordinary prompt; so has a copy that no longer says so."""
    bundled = open_model(MODEL_PATH).tokenizer
    asked = ("A text.", "What is the capital of France?")
    assert prompt_text(bundled, *asked)[0].endswith("Answer: the capital of France")
    bundled.save_pretrained(tmp_path)
    copy = AutoTokenizer.from_pretrained(tmp_path)
    assert prompt_text(copy, *asked) == prompt_text(bundled, *asked)
    del copy.init_kwargs[LEAD_INS]
    assert prompt_text(copy, *asked)[0] == "A text.\n\nQuestion: What is the capital of France?\nAnswer:"
    own = PromptStyle(template="{document} Q: {question} A:")
    assert prompt_text(bundled, *asked, own)[0] == "A text. Q: What is the capital of France? A:"


@pytest.mark.parametrize("chat_template", [True, False])
@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("places", ["", "{system}|"])
def test_a_prompt_template_is_for_the_first_question(chat_template, system, places):
    tokenizer = open_model(MODEL_PATH).tokenizer
    tokenizer.chat_template = ROLES
    style = PromptStyle(chat_template, system, places + "{document}|{question}|")
    text = conversation_text(tokenizer, Subject("A text.", style), [Turn("Why?", "So.")], "And?")
    within = "Be brief." if system else ""
    first = (f"{within}|" if places else "") + "A text.|Why?|"
    before = within if not places else ""
    if chat_template:
        role = f"<system>{before}</>" if before else ""
        assert text == f"{role}<user>{first}</><assistant>So.</><user>And?</><assistant>"
    else:
        assert text == (f"{before}\n\n" if before else "") + f"{first} So.\n\nQuestion: And?\nAnswer:"
    assert text.startswith(
        answered(tokenizer, conversation_text(tokenizer, Subject("A text.", style), [], "Why?"), "So.", style)
    )
    with pytest.raises(PromptError, match="needs a document"):
        conversation_text(tokenizer, Subject(None, style), [], "Why?")
