"""Prompts with tools: what templates are given, forms of calls by template, and templates without a place for them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from support.asked import DOCUMENT
from support.serving import about, beginning
from support.tools import DECLARED, END, HERMES, LLAMA, OTHER, PLAIN, RESPONSES, TOOL, asked_with_tools, speller
from winnow.cache import compress
from winnow.commands.compress import document_start
from winnow.evaluate.turns import Subject
from winnow.serve.beginnings import prompt_of
from winnow.serve.calls import Bare, Marked
from winnow.serve.refusals import Refused
from winnow.serve.tool_templates import form_of
from winnow.serve.wanted import read_chat
from winnow.tasks.prompt_style import PromptStyle

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
HISTORY = [
    {"role": "user", "content": "Hot?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "21"},
]


@pytest.fixture
def bare(tiny):
    return beginning(tiny[1])


def prompt(template, bare, responses=None, **asked):
    return prompt_of(speller(template, responses), bare, read_chat(asked))


def refusal(*arguments, **asked):
    with pytest.raises(Refused) as refused:
        prompt(*arguments, **asked)
    assert refused.value.status == 400
    return refused.value


@pytest.mark.parametrize(
    ("template", "responses", "reader"),
    [(HERMES, None, Marked), (LLAMA, None, Bare), (DECLARED, RESPONSES, Marked)],
)
def test_the_form_of_calls_is_told_by_the_template(template, responses, reader, bare):
    found = prompt(template, bare, responses, **asked_with_tools())
    assert isinstance(found.form.reader(), reader)
    special = [END, "<|im_start|>", "<|call|>", "<|called|>"]
    assert found.form.special == set(speller().convert_tokens_to_ids(special))
    assert found.templated
    assert '"weather"' in found.text


def test_a_response_template_counts_before_the_chat_template():
    form = form_of(speller(HERMES, RESPONSES), [TOOL])
    reader = form.reader()
    assert reader.add("<tool_call>") == ["<tool_call>"]
    (call,) = reader.add("<|call|>weather city=Rome<|called|>!")[:1]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Rome"})


@pytest.mark.parametrize("responses", [{}, {"fields": {"content": {}}}, {"fields": {"tool_calls": {"close": "x"}}}])
def test_a_response_template_without_calls_does_not_count(responses):
    form = form_of(speller(HERMES, responses), [TOOL])
    assert form.reader().add("<tool_call>") == []


def test_templates_get_what_transformers_documents(bare):
    """Arguments as they are instead of a text, the tool's name with its result, and words that are not null."""
    shown = "{% if messages[0].content == 'Hot?' %}{{ [tools, messages] | tojson }}{% else %}"
    found = prompt(f"{shown}{HERMES}{{% endif %}}", bare, messages=HISTORY, tools=[TOOL])
    tools, messages = json.loads(found.text)
    assert tools == [TOOL]
    assert messages == [
        {"role": "user", "content": "Hot?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
            ],
        },
        {"role": "tool", "content": "21", "tool_call_id": "c1", "name": "weather"},
    ]


def test_a_conversation_with_calls_is_written(bare):
    found = prompt(HERMES, bare, messages=HISTORY, tools=[TOOL])
    called = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert found.text.endswith(
        f"<|im_start|>user\nHot?<|im_end|>\n<|im_start|>assistant\n{called}<|im_end|>\n"
        "<|im_start|>tool\n<result>21</result><|im_end|>\n<|im_start|>assistant\n"
    )
    # Without tools an answer has none to call, but what was called before is there.
    silent = prompt(HERMES, bare, messages=HISTORY)
    assert silent.form is None
    assert found.text.endswith(silent.text)


def test_no_tools_where_none_are_to_be_called(bare):
    found = prompt(HERMES, bare, **asked_with_tools(tool_choice="none"))
    assert found == prompt(HERMES, bare, messages=[{"role": "user", "content": "Hot?"}])
    assert found.form is None


def test_instructions_of_the_server_stand_before_tools(bare):
    start = replace(bare, subject=Subject(None, PromptStyle(system="own")))
    assert "own" in prompt(HERMES, start, **asked_with_tools()).text


@pytest.mark.parametrize("asked", [asked_with_tools(), {"messages": HISTORY}], ids=["tools", "calls"])
def test_templates_without_tools_refuse_them(asked, bare):
    found = refusal(PLAIN, bare, **asked)
    assert found.field == ("tools" if "tools" in asked else "messages")
    assert "no place for tools" in str(found)
    # Where none are to be called, none are in the way.
    assert prompt(PLAIN, bare, **asked_with_tools(tool_choice="none")).text


def test_calls_of_an_unknown_form_are_refused(bare):
    found = refusal(OTHER, bare, **asked_with_tools())
    assert (found.field, "response_template" in str(found)) == ("tools", True)
    # They can be written, and read by somebody else.
    assert "[CALL]weather" in prompt(OTHER, bare, messages=HISTORY).text


def test_a_model_without_a_template_takes_no_tools(bare):
    assert "no chat template" in str(refusal(None, bare, **asked_with_tools()))
    plain = replace(bare, subject=Subject(None, PromptStyle(chat_template=False)))
    assert "no chat template" in str(refusal(HERMES, plain, **asked_with_tools()))
    assert refusal(None, bare, messages=HISTORY).field == "messages"


def test_a_document_takes_no_tools(model, tokenizer):
    document = about(compress(model, document_start(tokenizer, DOCUMENT.text), "full"), DOCUMENT.text)
    assert "is a document" in str(refusal(HERMES, document, **asked_with_tools()))


def test_what_a_template_makes_of_odd_tools_is_a_refusal(bare):
    """Whatever goes wrong in it."""
    broken = HERMES.replace("{% if tools %}", "{% if tools %}{{ '' + (tools[0].function.parameters.n or '') }}")
    odd = {"type": "function", "function": {"name": "a", "parameters": {"n": 3}}}
    found = refusal(broken, bare, messages=[{"role": "user", "content": "Hot?"}], tools=[odd])
    assert "cannot write this conversation with its tools" in str(found)
    assert found.field == "tools"


def test_what_a_template_cannot_write_is_refused_by_its_field(bare):
    odd_tool = "{% if tools and tools[0].function.name == 'odd' %}{{ raise_exception('No.') }}{% endif %}"
    odd_words = "{% if messages[0].content == 'odd' %}{{ raise_exception('No.') }}{% endif %}"
    odd = {"type": "function", "function": {"name": "odd"}}
    asked = {"tools": [odd], "messages": [{"role": "user", "content": "odd"}]}
    assert refusal(odd_tool + HERMES, bare, **asked).field == "tools"
    assert refusal(odd_words + HERMES, bare, **asked).field == "messages"
