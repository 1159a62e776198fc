"""Calls of tools in answers: whole, cut anywhere, broken, several, with text around, and what is only like one."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from support.tools import DECLARED, END, HERMES, LLAMA, RESPONSES, TOOL, call_text, speller
from winnow.serve.asked import Costs, Finished
from winnow.serve.calls import Call
from winnow.serve.heard import Heard
from winnow.serve.tool_templates import form_of

FORMS = {
    "hermes": form_of(speller(HERMES), [TOOL]),
    "llama": form_of(speller(LLAMA), [TOOL]),
    "declared": form_of(speller(DECLARED, RESPONSES), [TOOL]),
}
BARE = '{"name": "weather", "parameters": {"city": "Rome"}}'
OWN = "<|call|>weather city=Rome<|called|>"
ROME = ("weather", {"city": "Rome"})


SPECIAL = re.compile(r"(<\|(?:im_end|im_start|call|called)\|>)")


def letters(text):
    """Letters of a text, and special tokens."""
    return re.findall(rf"{SPECIAL.pattern[1:-1]}|.", text, re.DOTALL)


def heard(pieces, form="hermes", cut=False, **more):
    """Text and calls of an answer that comes in pieces, and all that was told on the way."""
    answer = Heard(FORMS[form] if isinstance(form, str) else form, **more)
    split = [each for piece in pieces for each in SPECIAL.split(piece) if each]
    told = [part for each in split for part in answer.add(each, special=bool(SPECIAL.fullmatch(each)))]
    told += answer.end(cut)
    texts = [part for part in told if isinstance(part, str)]
    assert answer.text == "".join(texts)
    assert all(texts)
    assert answer.calls == [part for part in told if isinstance(part, Call)]
    return answer, told


def said(answer):
    return answer.text, [(call.name, json.loads(call.arguments)) for call in answer.calls]


NONE = [
    '<tool_call>\n{"name": "weather", "arguments": {"city":',
    "<tool_call>Rome</tool_call>",
    "<tool_call></tool_call>",
    '<tool_call>{"name": "weather"}</tool_call>',
    '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "a", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>',
    '<tool_call>{"name": "a", "arguments": {"x": "\\ud800"}}</tool_call>',
    '<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>',
    "<tool_call>" + "[" * 10**5 + "</tool_call>",
    '<tool_call>{"name": "a", "arguments": ' + '{"x": ' * 10**5 + "</tool_call>",
    "I write <tool_call> around calls.",
    "<tool_call> {<tool_call> {</tool_call> {",
    "a < b, <tool and <tool_call",
    "</tool_call> is no call.",
]
"""Answers that stay text."""
CASES = {
    "hermes": [
        (call_text(), "", [ROME]),
        (f"I look.\n{call_text()}", "I look.", [ROME]),
        (f"{call_text()}\n{call_text('Oslo')}", "", [ROME, ("weather", {"city": "Oslo"})]),
        (f"I look.\n\n{call_text()}\n{call_text()}\nWait.", "I look.\nWait.", [ROME, ROME]),
        (call_text("Ré<b>{}"), "", [("weather", {"city": "Ré<b>{}"})]),
        (call_text(name="another"), "", [("another", {"city": "Rome"})]),
        ('<tool_call>{"arguments": {}, "name": "weather"}</tool_call>', "", [("weather", {})]),
        # Not closed, up to the end or to the token that ends an answer.
        (call_text().removesuffix("</tool_call>"), "", [ROME]),
        (call_text().removesuffix("</tool_call>") + END, "", [ROME]),
        (call_text() + END, "", [ROME]),
        (f"<tool_call>x</tool_call> {call_text()}", "<tool_call>x</tool_call>", [ROME]),
        (f"{call_text()} <tool_call>x</tool_call>{call_text()}", "<tool_call>x</tool_call>", [ROME, ROME]),
        (f"  {END}words  ", "words", []),
        # No call that is mentioned, or broken, hides one.
        (f"I write <tool_call> around it: {call_text()}", "I write <tool_call> around it:", [ROME]),
        (f"<tool_call>\n{call_text()}", "<tool_call>", [ROME]),
        (f"<tool_call>{{x {call_text()}", "<tool_call>{x", [ROME]),
        (f"<tool_call>{{x{END} {call_text()}", "<tool_call>{x", [ROME]),
        (f"<tool_call>{{x {call_text().removesuffix('</tool_call>')}{END}", "<tool_call>{x", [ROME]),
        (call_text("<tool_call>{}"), "", [("weather", {"city": "<tool_call>{}"})]),
        # Words are not joined into one.
        (f"I look. {call_text()} Wait.", "I look. Wait.", [ROME]),
        (f"I look. {call_text()}Wait.", "I look. Wait.", [ROME]),
        # What only begins like a special token is text.
        (f"a <|im_{call_text()}", "a <|im_", [ROME]),
        ("a <|im_", "a <|im_", []),
        ("", "", []),
        *((text, text, []) for text in NONE),
    ],
    "llama": [
        (BARE, "", [ROME]),
        (f" {BARE}\n", "", [ROME]),
        (BARE.replace(": ", ":").replace("{", "{\n "), "", [ROME]),
        (BARE.replace("parameters", "arguments"), "", [ROME]),
        (BARE[:-1], BARE[:-1], []),
        (f"{BARE} it is.", f"{BARE} it is.", []),
        (f"It is {BARE}", f"It is {BARE}", []),
        (BARE.replace("weather", "another"), BARE.replace("weather", "another"), []),
        ('{"name": "Bob"}', '{"name": "Bob"}', []),
        ('{"city": "Rome"}', '{"city": "Rome"}', []),
        ("{", "{", []),
        ("", "", []),
    ],
    "declared": [
        (OWN, "", [ROME]),
        (f"I look.\n{OWN}\n{OWN}", "I look.", [ROME, ROME]),
        (f"{OWN}{END}", "", [ROME]),
        ("<|call|>weather city=Rome", "", [ROME]),
        (f"<|call|>weather city=Rome{END}", "", [ROME]),
        # Its marks take all space.
        (f"So\n{OWN} {OWN} x", "So x", [ROME, ROME]),
        ("<|call|>!", "!", []),
        ("a <|im_start|>b", "a b", []),
    ],
}  # fmt: skip
EVERY = [(form, *case) for form, cases in CASES.items() for case in cases]
SHORT = [case for case in EVERY if len(case[1]) < 1000]


@pytest.mark.parametrize(("form", "text", "words", "calls"), EVERY, ids=[f"{each[0]}-{each[1][:30]}" for each in EVERY])
def test_an_answer_in_one_piece(form, text, words, calls):
    answer, _ = heard([text], form)
    assert said(answer) == (words, calls)


@pytest.mark.parametrize(("form", "text", "words", "calls"), SHORT, ids=[f"{each[0]}-{each[1][:30]}" for each in SHORT])
def test_an_answer_that_is_cut_anywhere(form, text, words, calls):
    each = letters(text)
    for place in range(len(each) + 1):
        answer, _ = heard(["".join(each[:place]), "".join(each[place:])], form)
        assert said(answer) == (words, calls), place
    assert said(heard(each, form)[0]) == (words, calls)


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "a", "arguments": {}}', "<", "tool", " ", "\n", "{", "a", END]
)


@given(st.lists(PIECES, max_size=8), st.data())
def test_any_text_is_the_same_however_it_comes(pieces, data):
    text = letters("".join(pieces))
    whole, _ = heard(["".join(text)])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    cut = ["".join(text[start:end]) for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert said(heard(cut)[0]) == said(whole)
    assert END not in whole.text


@pytest.mark.parametrize("form", ["hermes", "declared"])
def test_a_call_that_was_cut_off_is_text(form):
    """It would be one with other arguments; the model closes it, or ends the answer."""
    text = {"hermes": call_text("Zürich").removesuffix("</tool_call>"), "declared": "<|call|>weather city=Zür"}[form]
    answer, _ = heard([f"I look. {text}"], form, cut=True)
    assert said(answer) == (f"I look. {SPECIAL.sub('', text)}".strip(), [])
    whole = {"hermes": call_text(), "declared": OWN}[form]
    assert said(heard([f"{whole} and"], form, cut=True)[0]) == ("and", [ROME])


def test_special_tokens_that_are_spelled_out_are_words():
    answer = Heard(FORMS["hermes"])
    text = f"Write <|im_start|> or {END}."
    told = [part for letter in text for part in answer.add(letter)]
    assert "".join([*told, *answer.end()]) == text


@pytest.mark.parametrize("schema", [{"anyOf": 5}, {"anyOf": True}, {"type": 3}], ids=str)
def test_schemas_that_are_none_leave_text_or_a_call(schema):
    """The reader of a response template is a program over values that a request chose."""
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": schema}}}}
    answer, _ = heard([f"So: {OWN}."], form_of(speller(DECLARED, RESPONSES), [tool]))
    assert said(answer) in (("So: weather city=Rome.", []), ("So: .", [ROME]))


def test_arguments_that_are_no_json_are_text():
    calls = {"open": "<|call|>", "close": "<|called|>", "content": "json"}
    responses = {"fields": {"tool_calls": {**calls, "transform": {"type": "function", "function": "{content}"}}}}
    form = form_of(speller(DECLARED, responses), [TOOL])
    for number, calls in (("3", [("weather", {"x": 3})]), ("NaN", []), ("1e999", [])):
        text = f'{{"name": "weather", "arguments": {{"x": {number}}}}}'
        assert said(heard([f"<|call|>{text}<|called|>"], form)[0]) == ("" if calls else text, calls)


def test_thousands_of_special_tokens_cost_an_answer_nothing():
    tokenizer = speller(HERMES)
    tokenizer.add_tokens([AddedToken(f"<unused{each}>", special=True) for each in range(3000)], special_tokens=True)
    form, seconds = form_of(tokenizer, [TOOL]), []
    assert len(form.special) == 3004
    for _ in range(3):
        began = time.perf_counter()
        heard([call_text()], form)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.1


def test_a_mention_of_a_mark_holds_nothing_back():
    answer = Heard(FORMS["hermes"])
    assert answer.add("I write <tool_call>") == ["I write"]
    assert answer.add(" ") == []
    assert answer.add("around") == [" <tool_call> around"]
    assert answer.add(" calls") == [" calls"]


def test_text_is_told_at_once_unless_it_may_begin_a_call():
    answer = Heard(FORMS["hermes"])
    assert answer.add("a < b") == ["a < b"]
    assert answer.add(" <") == []
    assert answer.add("t") == []
    assert answer.add("his> is") == [" <this> is"]
    assert answer.add("\n\n") == []
    assert answer.add("it") == ["\n\nit"]


def test_json_is_told_at_once_unless_it_may_be_a_call():
    answer = Heard(FORMS["llama"])
    assert answer.add("{ ") == []
    assert answer.add('"na') == []
    assert answer.add("tion") == ['{ "nation']
    assert answer.add('{"name":') == ['{"name":']


def test_a_call_is_told_when_it_is_complete():
    answer = Heard(FORMS["hermes"])
    text = f"So:\n{call_text()}"
    told = [answer.add(each) for each in text]
    assert [parts for parts in told[:-1] if parts] == [["S"], ["o"], [":"]]
    (call,) = told[-1]
    assert (call.name, json.loads(call.arguments)) == ROME
    assert [len(parts) for parts in map(answer.add, call_text("Oslo"))][-1] == 1


def test_calls_have_names_of_their_own():
    answer, _ = heard([call_text() * 2])
    ids = [call.id for call in answer.calls]
    assert len(set(ids)) == 2
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert answer.calls.index(answer.calls[1]) == 1


def test_letters_of_arguments_are_told_as_they_are():
    (call,) = heard([call_text("Zürich")])[0].calls
    assert call.arguments == '{"city": "Zürich"}'


def test_one_call_where_no_more_is_wanted():
    answer, told = heard([f"A {call_text()}\n{call_text('Oslo')} B"], one_call=True)
    assert said(answer) == ("A B", [ROME])
    assert len([part for part in told if isinstance(part, Call)]) == 1


def test_arguments_have_the_types_of_the_tool():
    """If the model writes none, and transformers is new enough."""
    answer, _ = heard(["<|call|>weather city=7 days=7<|called|>"], "declared")
    found = said(answer)[1][0][1]
    assert found in ({"city": "7", "days": 7}, {"city": "7", "days": "7"})


def test_an_answer_without_tools_is_text_as_it_is():
    answer = Heard(None)
    assert answer.add(f" {call_text()}") == [f" {call_text()}"]
    assert answer.end() == []
    assert (answer.text, answer.calls) == (f" {call_text()}", [])


@pytest.mark.parametrize(
    ("text", "reason", "ending"),
    [(call_text(), "stop", "tool_calls"), (call_text(), "length", "length"), ("Warm.", "stop", "stop")],
)
def test_the_reason_for_which_an_answer_ends(text, reason, ending):
    answer, _ = heard([text])
    assert answer.ending(Finished(reason, 3, Costs("full", 1, 1, 0, 0, 0))) == ending
