"""Prompt styles: templates that can be filled, and facts that come back from files."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.errors import PromptError
from winnow.tasks.prompt_style import USUAL, PromptStyle


def test_a_template_is_filled_in_its_places():
    style = PromptStyle(template='{system}Text: {document}\n\nReply {"as": "JSON"}. {question}', system="Be brief. ")
    assert style.places_system
    assert style.filled("a", "why?") == 'Be brief. Text: a\n\nReply {"as": "JSON"}. why?'
    assert PromptStyle(template="{system}{document}{question}").filled("a", "b") == "ab"
    assert not PromptStyle(template="{document}{question}", system="x").places_system


@given(st.text(), st.text())
def test_texts_are_filled_in_as_they_are(document, question):
    assert PromptStyle(template="<{document}|{question}>").filled(document, question) == f"<{document}|{question}>"


def test_what_is_filled_in_is_not_filled_again():
    assert PromptStyle(template="{document} {question}").filled("{question}", "{system}") == "{question} {system}"


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{question}", r"has no \{document\}"),
        ("{document}", r"has no \{question\}"),
        ("", r"has no \{document\}"),
        ("{document} {question} {answer}", r"an unknown place \{answer\}"),
        ("{document} {question} {document}", r"has \{document\} 2 times"),
        ("{document} {question} {system} {system}", r"has \{system\} 2 times"),
    ],
)
def test_templates_that_cannot_be_filled(template, told):
    with pytest.raises(PromptError, match=told) as caught:
        PromptStyle(template=template)
    assert "\n" not in str(caught.value)


def test_a_question_before_the_document_is_told_where_it_matters():
    PromptStyle(template="{document} {question}").check_question_last()
    USUAL.check_question_last()
    with pytest.raises(PromptError, match=r"put \{document\} first"):
        PromptStyle(template="{question} {document}").check_question_last()


STYLES = st.builds(
    PromptStyle,
    chat_template=st.booleans(),
    system=st.none() | st.text(),
    template=st.none() | st.just("{document}{question}"),
    day=st.none() | st.dates().map(str),
)


@given(STYLES)
def test_facts_come_back(style):
    facts = json.loads(json.dumps(style.facts()))
    assert PromptStyle.of_facts(facts, "a file") == style
    assert (style == USUAL) == (not facts) == (not style.named_facts())


@pytest.mark.parametrize(
    "facts", [{"template": 3}, {"lead": True}, [], {"template": "no place"}, {"day": "today"}, {"day": ""}]
)
def test_facts_of_no_style_are_refused(facts):
    with pytest.raises(PromptError):
        PromptStyle.of_facts(facts, "a file")
