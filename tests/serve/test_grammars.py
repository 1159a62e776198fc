"""Grammars: texts that they let through, token by token, and schemas that are refused."""

from __future__ import annotations

import json
import random
import sys
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from support.schemas import PERSON, TREE, follows
from support.tools import END, speller
from winnow.serve import grammars as module
from winnow.serve import trials
from winnow.serve.call_grammars import bare_grammar, marked_grammar
from winnow.serve.constrained import schema_grammar
from winnow.serve.grammars import Grammars
from winnow.serve.refusals import Refused
from winnow.serve.rules import ANY_OBJECT, Rules

pytest.importorskip("llguidance")

CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"type": "string"}},
}
ANSWER = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FUNCTIONS = {"weather": CITY, "weather_2": ANY_OBJECT}
PIECES = ("}}", "><", '>{"', '{"n', '":', '"}}', '"}}</', "x<tool", '_call>{"', "ok", '{"', "},")
"""Tokens that end in another part of an answer than they begin in."""


def made(pieces=PIECES, marks=None, special=False, stops=()):
    """A tokenizer, and its grammars. marks: tokens of their own."""
    tokenizer = speller(pieces=pieces)
    if marks is not None:
        tokenizer.add_tokens([AddedToken(each, special=special) for each in marks], special_tokens=special)
    ends = frozenset(tokenizer.convert_tokens_to_ids([END, *stops]))
    return tokenizer, Grammars(tokenizer, ends), ends


@pytest.fixture(scope="module")
def spelled():
    return made()


def compiled(grammars, grammar, field="f"):
    return grammars.compiled(grammar, field)


def of_schema(grammars, schema, field="f"):
    return compiled(grammars, partial(schema_grammar, schema), field)


def lets(grammar, tokens, ends):
    """True if an answer may be these tokens, and end then."""
    guide = grammar.start()
    for token in tokens:
        if guide.complete or not guide.allowed()[token]:
            return False
        guide.take(token)
    return guide.complete or bool(guide.allowed()[sorted(ends)].all())


def walked(grammar, ends, seed, most=4000):
    """Tokens of an answer that takes any of the tokens that are allowed; None where it does not end."""
    draw, guide, said = random.Random(seed), grammar.start(), []
    while not guide.complete and len(said) < most:
        token = draw.choice(guide.allowed().nonzero().flatten().tolist())
        if token in ends:
            return said
        guide.take(token)
        said.append(token)
    return said if guide.complete else None


def refusal(grammars, schema):
    with pytest.raises(Refused) as refused:
        of_schema(grammars, schema, "response_format.json_schema.schema")
    assert (refused.value.status, refused.value.field) == (400, "response_format.json_schema.schema")
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "a", "age": 3, "home": {"city": "b"}}', True),
        ('{"name":"","age":120,"kind":null,"tags":[true,false],"home":{"city":""}}', True),
        ('{\n  "name": "ü😀", "age": 0,\n\t"home": {}}', False),
        ('{"name": "a", "age": 121, "home": {"city": "b"}}', False),
        ('{"name": "a", "age": 3, "home": {"city": "b"}} ', False),
        (' {"name": "a", "age": 3, "home": {"city": "b"}}', False),
        ('{"name": "a", "age": 3, "home": {"city": "b"}, "more": 1}', False),
        (f'{{{" " * 40}"name": "a", "age": 3, "home": {{"city": "b"}}}}', True),
        (f'{{{" " * 41}"name": "a", "age": 3, "home": {{"city": "b"}}}}', False),
        ("", False),
    ],
)
def test_a_schema(text, expected, spelled):
    tokenizer, grammars, ends = spelled
    assert lets(of_schema(grammars, PERSON), tokenizer(text).input_ids, ends) is expected


def test_a_key_has_one_spelling(spelled):
    """Readers of JSON take the last of two that are the same."""
    tokenizer, grammars, ends = spelled
    grammar = of_schema(grammars, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    for text, expected in (('{"a":1,"b":"x"}', True), ('{"a":1,"a":"x"}', False), (r'{"a":1,"\u0061":"x"}', False)):
        assert lets(grammar, tokenizer(text).input_ids, ends) is expected


def test_requests_do_not_choose_how_json_is_written(spelled):
    tokenizer, grammars, ends = spelled
    grammar = of_schema(grammars, {**ANSWER, "x-guidance": {"item_separator": ";", "whitespace_pattern": "x"}})
    assert lets(grammar, tokenizer('{"ok": true}').input_ids, ends)
    assert not lets(grammar, tokenizer('{x"ok":true}').input_ids, ends)


# Most control characters have no spelling.
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=3)
SCALARS = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.tuples(st.integers(-99, 99), st.integers(0, 2000)).map(
        lambda both: {"type": "integer", "minimum": both[0], "maximum": sum(both)}
    ),
    st.tuples(st.integers(0, 3), st.integers(0, 4)).map(
        lambda both: {"type": "string", "minLength": both[0], "maxLength": sum(both)}
    ),
    st.lists(TEXTS | st.integers(-(2**53), 2**53) | st.none(), min_size=1, max_size=3).map(lambda each: {"enum": each}),
)
NAMES = st.text('abcü "\\/\n', max_size=3)


def _object(properties):
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(properties)[::2],
        "additionalProperties": False,
    }


SCHEMAS = st.recursive(
    SCALARS,
    lambda inside: st.one_of(
        st.dictionaries(NAMES, inside, max_size=3).map(_object),
        st.tuples(inside, st.integers(0, 3)).map(lambda both: {"type": "array", "items": both[0], "maxItems": both[1]}),
        st.lists(inside, min_size=1, max_size=2).map(lambda each: {"anyOf": each}),
    ),
    max_leaves=5,
)


@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_any_way_through_a_schema_ends_in_a_value_of_it(schema, seed, spelled):
    tokenizer, grammars, ends = spelled
    said = walked(of_schema(grammars, schema), ends, seed)
    assert said is not None
    assert follows(json.loads(tokenizer.decode(said)), schema)


@pytest.mark.parametrize("seed", range(5))
def test_a_schema_that_refers_to_itself(seed, spelled):
    tokenizer, grammars, ends = spelled
    said = walked(of_schema(grammars, TREE), ends, seed)
    assert follows(json.loads(tokenizer.decode(said)), TREE)


def call(name="weather", key="arguments", **arguments):
    return json.dumps({"name": name, key: arguments})


def marked(*arguments, **named):
    return f"<tool_call>\n{call(*arguments, **named)}\n</tool_call>"


GOOD, OTHER, WRONG = marked(city="Rome"), marked("weather_2", days=[3]), marked(city=3)
RULES = {
    "free": Rules(FUNCTIONS),
    "forced": Rules(FUNCTIONS, forced=True),
    "once": Rules(FUNCTIONS, forced=True, once=True),
    "answer": Rules(FUNCTIONS, answer=ANSWER),
}
MARKED = [
    ("", ["free"]),
    ("It is hot < 3. {}", ["free"]),
    ("An <tool", ["free"]),
    (GOOD, ["free", "forced", "once", "answer"]),
    (OTHER, ["free", "forced", "once", "answer"]),
    (f"I look.\n{GOOD}", ["free"]),
    (f"{GOOD}\n{OTHER}", ["free", "forced", "answer"]),
    (f"{GOOD} So.", ["free"]),
    ('{"ok": true}', ["free", "answer"]),
    ('{"ok": 3}', ["free"]),
    (f'{{"ok": true}}{GOOD}', ["free"]),
    (WRONG, []),
    (f"I look.{WRONG}", []),
    (f"{GOOD}{WRONG}", []),
    (marked("climate"), []),
    (marked(key="parameters", city="Rome"), []),
    ("<tool_call>", []),
    ("<tool_call> is a word", []),
    (GOOD.removesuffix("</tool_call>"), []),
    ('<tool_call>{"arguments": {"city": 3}, "name": "weather"}</tool_call>', []),
]


@pytest.mark.parametrize("marks", [None, False, True], ids=["spelled", "tokens", "special"])
@pytest.mark.parametrize("rules", RULES)
def test_calls_between_marks(rules, marks):
    names = None if marks is None else ("<tool_call>", "</tool_call>")
    tokenizer, grammars, ends = made(marks=names, special=bool(marks))
    grammar = compiled(grammars, partial(marked_grammar, RULES[rules]))
    letters = speller()
    for text, expected in MARKED:
        assert lets(grammar, tokenizer(text).input_ids, ends) is (rules in expected), text
        # The marks may be spelled also where there are tokens for them.
        spelled_out = [token for letter in text for token in letters(letter).input_ids]
        assert lets(grammar, spelled_out, ends) is (rules in expected), text


def test_tokens_that_reach_into_a_call_and_out_of_it(spelled):
    tokenizer, grammars, ends = spelled
    grammar = compiled(grammars, partial(marked_grammar, RULES["free"]))

    def lets_through(*parts):
        tokens = []
        for part in parts:
            tokens += [tokenizer.convert_tokens_to_ids(part)] if part in PIECES else tokenizer(part).input_ids
        return lets(grammar, tokens, ends)

    inside = 'name": "weather", "arguments": {"city": "Rome'
    assert lets_through("x<tool", '_call>{"', inside, '"}}</', "tool_call>")
    again = f'tool_call>{{"{inside}"}}}}</tool_call>'
    assert lets_through("<tool_call", '>{"', inside, '"', "}}", "</tool_call", "><", again)
    assert not lets_through("x<tool", '_call>{"', "city")


def test_special_tokens_are_free_where_text_is(spelled):
    tokenizer, grammars, ends = spelled
    for grammar, of_call in ((marked_grammar, GOOD), (bare_grammar, call(key="parameters", city="Rome"))):
        free = compiled(grammars, partial(grammar, RULES["free"]))
        for text in ("<|call|>", f"<|call|>{of_call}", "a<|call|>b<|called|>"):
            assert lets(free, tokenizer(text).input_ids, ends), text
        assert not lets(free, tokenizer(of_call.replace("Rome", "<|call|>")).input_ids, ends)
        forced = compiled(grammars, partial(grammar, RULES["forced"]))
        assert not lets(forced, tokenizer("<|call|>").input_ids, ends)


PLAIN = call(key="parameters", city="Rome")
BARE = [
    ("", ["free"]),
    (" It is { hot", ["free"]),
    (PLAIN, ["free", "forced", "once", "answer"]),
    (call("weather_2", "parameters", days=[3]), ["free", "forced", "once", "answer"]),
    (f" {PLAIN}", ["free"]),
    (f"So: {PLAIN}", ["free"]),
    ('{"ok": true}', ["answer"]),
    ("{}", []),
    (PLAIN.replace('"Rome"', "3"), []),
    (f" {PLAIN.replace('weather', 'climate')}", []),
    (PLAIN.replace("parameters", "arguments"), []),
    (f"{PLAIN}{PLAIN}", []),
]


@pytest.mark.parametrize("rules", RULES)
def test_calls_without_marks(rules, spelled):
    tokenizer, grammars, ends = spelled
    grammar = compiled(grammars, partial(bare_grammar, RULES[rules]))
    for text, expected in BARE:
        assert lets(grammar, tokenizer(text).input_ids, ends) is (rules in expected), text


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("grammar", [marked_grammar, bare_grammar])
def test_any_way_through_forced_calls(grammar, seed, spelled):
    tokenizer, grammars, ends = spelled
    functions = {"one": PERSON, "two": ANSWER}
    said = walked(compiled(grammars, partial(grammar, Rules(functions, forced=True, once=True))), ends, seed)
    found = json.loads(tokenizer.decode(said).removeprefix("<tool_call>").removesuffix("</tool_call>"))
    name, arguments = found.values()
    assert follows(arguments, functions[name])


def test_a_token_that_ends_an_answer_is_no_text():
    """Some tokenizers do not mark it as a special one."""
    tokenizer, grammars, ends = made(marks=["STOP", "<end_of_turn>"], stops=["STOP", "<end_of_turn>"])
    guide = of_schema(grammars, {"type": "string"}).start()
    for letter, expected in (('"', False), ("a", False), ('"', True)):
        (token,) = tokenizer(letter).input_ids
        guide.take(token)
        assert set(guide.allowed()[sorted(ends)].tolist()) == {expected}
    assert guide.complete


def test_one_answer_does_not_change_another(spelled):
    tokenizer, grammars, _ = spelled
    grammar = of_schema(grammars, ANSWER)
    first, second = grammar.start(), grammar.start()
    first.take(tokenizer("{").input_ids[0])
    assert torch.equal(second.allowed(), grammar.start().allowed())
    assert not torch.equal(first.allowed(), second.allowed())


def test_a_token_that_may_not_come_is_refused(spelled):
    tokenizer, grammars, _ = spelled
    guide = of_schema(grammars, ANSWER, "here").start()
    with pytest.raises(Refused, match="no answer can follow here") as refused:
        guide.take(tokenizer("x").input_ids[0])
    assert refused.value.field == "here"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "thing"}, "Invalid type: thing"),
        ({"type": "object", "properties": 5}, "properties must be an object"),
        ({"type": "string", "pattern": "(?=a)"}, "look-ahead"),
        ({"type": "string", "format": "int32"}, "Unknown format: int32"),
        ({"not": {}}, "Unimplemented keys"),
        ({"$ref": "https://example.org/schema"}, "does not fetch"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "Unsatisfiable"),
        ({"type": float("nan")}, "expected value"),
        ({"enum": ["\ud800"]}, "hex escape"),
        ({"enum": [1, 2**53 + 1]}, "9007199254740993 is not exact in float64; use a string"),
        ({"type": "array", "items": {"type": "integer", "maximum": -(10**400)}}, "is not exact in float64"),
        # No text is of it, or none that can be spelled.
        ({"$ref": "#"}, "no answer can follow"),
        ({"enum": ["\x01"]}, "no answer can follow"),
    ],
)
def test_a_schema_that_is_not_supported(schema, said, spelled):
    found = refusal(spelled[1], schema)
    assert said in found
    assert "\n" not in found
    assert "non-verbose" not in found


def nested(depth):
    schema = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


HOSTILE = {
    "deep": nested(500),
    "wide": {"type": "object", "properties": {f"key{place}": {"type": "string"} for place in range(20_000)}},
    "costly": {"type": "integer", "multipleOf": 10**9 + 7},
    "steps": {"allOf": [{"type": "integer", "multipleOf": each} for each in (9973, 9967, 9949)]},
    "both": {"allOf": [{"type": "string", "pattern": f".*a.{{{length}}}b.*"} for length in range(5, 40)]},
    "many": {"allOf": [{"anyOf": [{"required": ["a"]}, {"required": ["b"]}, {"minProperties": n}]} for n in range(30)]},
}


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_schema_is_refused(schema, spelled):
    refusal(spelled[1], schema)


def test_a_grammar_that_ends_the_process_that_compiles_it(spelled, monkeypatch):
    monkeypatch.setattr(trials, "_PROGRAM", "import os; os.abort()")
    assert "cannot be compiled" in refusal(spelled[1], {"const": "another"})


def test_a_grammar_is_compiled_once(spelled, monkeypatch):
    tokenizer, _, ends = spelled
    grammars = Grammars(tokenizer, ends)
    monkeypatch.setattr(module, "KEPT", 2)
    first = of_schema(grammars, ANSWER)
    assert of_schema(grammars, dict(ANSWER)) is first
    second = of_schema(grammars, CITY)
    assert of_schema(grammars, ANSWER) is first
    of_schema(grammars, PERSON)
    assert of_schema(grammars, ANSWER) is first
    assert of_schema(grammars, CITY) is not second


def test_a_tokenizer_that_cannot_be_read(tokenizer):
    """The bundled model's knows whole words."""
    grammars = Grammars(tokenizer, frozenset())
    for _ in range(2):
        assert "cannot read its tokenizer" in refusal(grammars, ANSWER)


def test_without_llguidance(spelled, monkeypatch):
    tokenizer, _, ends = spelled
    for name in ("llguidance", "llguidance.hf"):
        monkeypatch.setitem(sys.modules, name, None)
    assert 'pip install "winnow-kv[serve]"' in refusal(Grammars(tokenizer, ends), ANSWER)
