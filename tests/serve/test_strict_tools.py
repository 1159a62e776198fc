"""Strict functions, and calls that must be made: random weights, once they are told to begin a call."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken

from support.schemas import PERSON, follows
from support.sites import answered, refused, site, spelled_engine, streamed
from support.tools import DECLARED, HERMES, LLAMA, PLAIN, RESPONSES, TOOL, call_text, speller
from support.turns import each_value
from winnow.evaluate.sampling import Sampling
from winnow.serve.constrained import schema_grammar

pytest.importorskip("llguidance")
pytestmark = pytest.mark.usefixtures("one_thread")

CITY = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Rome", "Oslo"]}},
}
OK = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
OK_FORMAT = {"type": "json_schema", "json_schema": {"name": "it", "schema": OK}}
MARKS = ("<tool_call>", "</tool_call>")
FORMS = {"spelled": (HERMES, None), "tokens": (HERMES, False), "special": (HERMES, True), "bare": (LLAMA, None)}
"""Chat templates, and whether the marks are tokens: special ones, others, or none."""
BEGUN = {"spelled": "I look. <tool_call>", "tokens": MARKS[0], "special": f"So: {MARKS[0]}", "bare": " {"}


def function(name, schema, **more):
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


STRICT = [function("weather", CITY, strict=True), function("person", PERSON, strict=True)]
SCHEMAS = {"weather": CITY, "person": PERSON}


@pytest.fixture(scope="module")
def served(source):
    """Engines by the form of calls, each with its tokenizer and its model."""
    found = {}
    for form, (template, special) in {**FORMS, "declared": (DECLARED, None), "plain": (PLAIN, None)}.items():
        tokenizer = speller(template, RESPONSES if form == "declared" else None, pieces=['{"', '"}', '":', "}}"])
        if special is not None:
            tokenizer.add_tokens([AddedToken(each, special=special) for each in MARKS], special_tokens=special)
        engine, model = spelled_engine(source, tokenizer)
        found[form] = engine, tokenizer, model
    yield found
    for engine, _, _ in found.values():
        assert engine.close()


@pytest.fixture
def client_of(served):
    return lambda form: site(*served[form])


@pytest.fixture
def begins(monkeypatch, served):
    """Says how every answer begins; the model goes on by itself."""
    choice = Sampling.choice

    def begin(form, text):
        tokens = served[form][1](text).input_ids

        def begun(sampling):
            said, drawn = iter(tokens), choice(sampling)

            def next_token(logits):
                token = next(said, None)
                if token is None:
                    return drawn(logits)
                assert logits[token] > -float("inf"), (text, token)
                return token

            return next_token

        monkeypatch.setattr(Sampling, "choice", begun)

    return begin


def asked(tools, **more):
    """A request with tools, answered by chance."""
    chance = {"temperature": 1.0, "seed": 1, "max_tokens": 2000}
    return {"messages": [{"role": "user", "content": "Hot?"}], "tools": tools, **chance, **more}


def calls(message):
    """Names and arguments of calls."""
    return [
        (each["function"]["name"], json.loads(each["function"]["arguments"])) for each in message.get("tool_calls", [])
    ]


def strictly(message, schemas=SCHEMAS):
    """Calls, which match the schemas."""
    found = calls(message)
    assert all(follows(arguments, schemas[name]) for name, arguments in found)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_strict_arguments_match_their_schema(form, client_of, begins):
    begins(form, BEGUN[form])
    client = client_of(form)
    # What comes behind a call with marks may be of any length.
    body = answered(client, **asked(STRICT, n=3, parallel_tool_calls=False, max_tokens=300))
    named = set()
    for choice in body["choices"]:
        found = strictly(choice["message"])
        assert len(found) == 1, choice
        named.add(found[0][0])
        if form == "bare":
            assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert named == set(SCHEMAS)


@pytest.mark.parametrize(("choice", "form"), each_value(["required", "named"], list(FORMS)))
def test_a_call_that_must_be_made(choice, form, client_of):
    client = client_of(form)
    named = {"type": "function", "function": {"name": "person"}}
    tool_choice, n = (named, 2) if choice == "named" else (choice, 3)
    request = asked(STRICT, n=n, tool_choice=tool_choice, parallel_tool_calls=False)
    body = answered(client, **request)
    found = []
    for each in body["choices"]:
        assert (each["finish_reason"], each["message"]["content"]) == ("tool_calls", None)
        found += strictly(each["message"])
    assert len(found) == n
    assert {name for name, _ in found} == ({"person"} if choice == "named" else set(SCHEMAS))
    if choice == "required":
        pieces = streamed(client, **request)
        told = [call for piece in pieces for call in piece["delta"].get("tool_calls", [])]
        assert sorted(map(str, calls({"tool_calls": told}))) == sorted(map(str, found))


@pytest.mark.parametrize("form", ["spelled", "tokens"])
def test_several_calls_that_must_be_made(form, client_of):
    body = answered(client_of(form), **asked(STRICT, n=3, tool_choice="required", max_tokens=600))
    counts = {len(strictly(each["message"])) for each in body["choices"] if each["finish_reason"] == "tool_calls"}
    assert counts
    assert 0 not in counts


@pytest.mark.parametrize("form", FORMS)
def test_a_function_that_is_not_strict_takes_any_object(form, client_of, begins):
    key = "parameters" if form == "bare" else "arguments"
    own = json.dumps({"name": "weather", key: {"town": ["Rome"]}})
    text = own if form == "bare" else f"<tool_call>{own}</tool_call>"
    begins(form, text)
    tools = [function("weather", CITY), function("person", PERSON, strict=True)]
    body = answered(client_of(form), **asked(tools, parallel_tool_calls=False, max_tokens=len(text) + 1))
    assert calls(body["choices"][0]["message"]) == [("weather", {"town": ["Rome"]})]


@pytest.mark.parametrize("form", FORMS)
def test_words_stay_as_they_are(form, client_of, begins):
    text = "It is hot <tool < 3. {} \u00fc"
    begins(form, text)
    length = len(text.encode())
    (choice,) = answered(client_of(form), **asked(STRICT, max_tokens=length))["choices"]
    assert (choice["message"], choice["finish_reason"]) == ({"role": "assistant", "content": text}, "length")


@pytest.mark.parametrize(("strict", "form"), each_value([True, False], list(FORMS)))
def test_an_answer_is_a_call_or_follows_a_schema(strict, form, client_of):
    tools = [function("weather", CITY, strict=strict)]
    more = {"response_format": OK_FORMAT, "parallel_tool_calls": False, "max_tokens": 300}
    body = answered(client_of(form), **asked(tools, n=6, **more))
    words = 0
    for each in body["choices"]:
        message = each["message"]
        if each["finish_reason"] == "length":
            assert not strict
        elif message["content"] is not None:
            words += 1
            assert follows(json.loads(message["content"]), OK)
        elif strict:
            assert strictly(message)
    assert words or form == "tokens"


def test_a_call_in_words_of_a_form_that_is_only_read_is_refused(client_of):
    client = client_of("declared")
    shape = {"type": "json_object"}
    for more, field in (
        ({}, "tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "response_format": shape}, "response_format"),
    ):
        error = refused(client, **{**asked(STRICT), **more})
        assert error["param"] == field
        assert "response_template" in error["message"]
    answered(client, **asked([TOOL], max_tokens=3))
    # Nothing is to be called.
    answered(client, **asked(STRICT, tool_choice="none", max_tokens=3))


def test_a_wrong_schema_is_refused_with_its_place(client_of):
    client = client_of("tokens")
    wrong = {"type": "object", "properties": {"x": {"type": "thing"}}}
    error = refused(client, **asked([STRICT[0], function("other", wrong, strict=True)]))
    assert error["param"] == "tools[1].function.parameters"
    assert "Invalid type: thing" in error["message"]
    shape = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"type": "thing"}}}
    assert refused(client, **asked(STRICT, response_format=shape))["param"] == "response_format.json_schema.schema"
    # To functions that are not strict, schemas are words.
    answered(client, **asked([function("other", wrong)], max_tokens=3))


def test_strict_is_no_word_of_the_prompt(served, client_of):
    """Templates are given tools without it, as before."""
    client = client_of("spelled")
    counts = [
        answered(client, **asked(tools, max_tokens=1))["usage"]["prompt_tokens"]
        for tools in (STRICT, [function(name, schema) for name, schema in SCHEMAS.items()])
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("form", ["spelled", "tokens", "special"])
def test_a_call_as_models_write_it(form, client_of, begins):
    begins(form, f"I look.\n{call_text(days=3)}")
    body = answered(client_of(form), **asked(STRICT, max_tokens=200, parallel_tool_calls=False))
    assert strictly(body["choices"][0]["message"]) == [("weather", {"city": "Rome", "days": 3})]


def test_schemas_are_kept_as_they_are():
    assert json.loads(schema_grammar(OK, {}))["grammars"][0]["json_schema"].items() >= OK.items()
