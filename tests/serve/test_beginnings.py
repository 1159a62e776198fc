"""Prompts of requests: templates, plain text, instructions, turns that are not in order, and documents."""

from __future__ import annotations

from dataclasses import replace

import pytest

import winnow
from support.asked import DOCUMENT
from support.serving import about, beginning, wanted
from winnow.bundled import MODEL_PATH
from winnow.cache import compress
from winnow.commands.compress import document_start
from winnow.evaluate.turns import Subject, Turn, conversation_text
from winnow.models import open_model
from winnow.serve.beginnings import prompt_of
from winnow.serve.messages import Message
from winnow.serve.refusals import Refused
from winnow.tasks.prompt_style import PromptStyle

TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('not that') }}{% endif %}"
    "[{{ m.role }}: {{ m.content }}]{% endfor %}{% if add_generation_prompt %}[assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def templated():
    tokenizer = open_model(MODEL_PATH).tokenizer
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture
def bare(tiny):
    return beginning(tiny[1])


@pytest.fixture(scope="module")
def document(model, tokenizer):
    return about(compress(model, document_start(tokenizer, DOCUMENT.text), "full"), DOCUMENT.text)


def styled(start, **style):
    return replace(start, subject=Subject(None, PromptStyle(**style)))


def said(*pairs):
    return replace(wanted("x"), messages=tuple(Message(role, content) for role, content in pairs))


def refusal(*arguments):
    with pytest.raises(Refused) as refused:
        prompt_of(*arguments)
    return refused.value


def test_a_template_writes_messages_as_they_are(templated, bare):
    found = prompt_of(templated, bare, said(("system", "S"), ("user", "A"), ("user", "B")))
    assert found.text == "[system: S][user: A][user: B][assistant: "
    assert found.templated
    assert found.field == "messages"
    assert found.answered(templated, " C ") == found.text + " C "


def test_instructions_of_the_server_are_for_conversations_that_bring_none(templated, bare):
    start = styled(bare, system="own")
    assert prompt_of(templated, start, wanted("A")).text == "[system: own][user: A][assistant: "
    found = prompt_of(templated, start, said(("system", "S"), ("user", "A")))
    assert found.text == "[system: S][user: A][assistant: "


def test_what_a_template_refuses_is_refused(templated, bare):
    found = refusal(templated, bare, wanted("no"))
    assert (found.field, found.status) == ("messages", 400)
    assert "not that" in str(found)


def test_plain_text_is_that_of_conversations(tokenizer, bare):
    found = prompt_of(tokenizer, bare, wanted("A", "B", "C"))
    assert found.text == conversation_text(tokenizer, Subject(), [Turn("A", "B")], "C")
    assert not found.templated
    assert found.answered(tokenizer, " D ") == f"{found.text} D"


def test_plain_text_for_a_model_with_a_template(templated, bare):
    start = styled(bare, chat_template=False)
    found = prompt_of(templated, start, wanted("A", "B", "C"))
    assert found.text == conversation_text(templated, start.subject, [Turn("A", "B")], "C")
    assert not found.templated


def test_instructions_stand_before_plain_text(tokenizer, bare):
    own = prompt_of(tokenizer, styled(bare, system="own"), wanted("A")).text
    theirs = prompt_of(tokenizer, styled(bare, system="own"), said(("system", "S"), ("user", "A"))).text
    assert own.startswith("own")
    assert theirs == own.replace("own", "S", 1)


@pytest.mark.parametrize(
    "turns",
    [
        (("user", "A"), ("user", "B")),
        (("assistant", "A"), ("user", "B")),
        (("user", "A"), ("system", "S"), ("user", "B")),
        (("system", "S"),),
    ],
)
def test_turns_that_are_not_in_order_have_no_plain_text(tokenizer, bare, turns):
    found = refusal(tokenizer, bare, said(*turns))
    assert found.field == "messages"
    assert "in turn" in str(found)


def test_a_text_is_gone_on_with_as_it_is(tokenizer, templated, bare):
    for each in (tokenizer, templated):
        found = prompt_of(each, bare, wanted(text=" Once "))
        assert (found.text, found.templated, found.field) == (" Once ", False, "prompt")
        assert found.answered(each, " upon ") == " Once  upon "


def test_a_document_is_asked(tokenizer, document):
    found = prompt_of(tokenizer, document, wanted("Who?", "I", "When?"))
    assert found.text == conversation_text(tokenizer, document.subject, [Turn("Who?", "I")], "When?")
    tokens = tokenizer(found.text).input_ids
    assert document.begins(tokens)
    assert not document.begins(tokens[: len(document.tokens)])
    assert not document.begins(tokens[1:])


def test_a_document_has_instructions_of_its_own(tokenizer, document):
    found = refusal(tokenizer, document, said(("system", "S"), ("user", "A")))
    assert found.field == "messages"
    assert "leave the system message out" in str(found)


def test_a_document_is_not_gone_on_with(tokenizer, document):
    found = refusal(tokenizer, document, wanted(text="Once"))
    assert found.field == "model"
    assert "/v1/chat/completions" in str(found)


def test_a_document_with_a_template(templated, model):
    start = document_start(templated, DOCUMENT.text)
    asked = about(compress(model, start, winnow.method("full")), DOCUMENT.text)
    found = prompt_of(templated, asked, wanted("Who?"))
    assert found.templated
    assert asked.begins(templated(found.text, add_special_tokens=False).input_ids)


def test_empty_words_are_words(tokenizer, templated, bare):
    assert prompt_of(templated, bare, wanted("")).text == "[user: ][assistant: "
    assert prompt_of(tokenizer, bare, wanted("", "", "")).text


def test_instructions_before_plain_text_for_a_model_with_a_template(templated, bare):
    start = styled(bare, chat_template=False)
    found = prompt_of(templated, start, said(("system", "S"), ("user", "A")))
    assert found.text == prompt_of(templated, styled(bare, chat_template=False, system="S"), wanted("A")).text
    assert not found.text.startswith("[")
    assert not found.templated
